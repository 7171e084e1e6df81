"""Brings the nodes of our operators into the form that TensorRT's plugins take: nothing optional, nothing implied.

A plugin has a fixed number of inputs and outputs, no default of an attribute, and no boolean tensors. So

1. every number of inputs that an operator can have is a plugin of its own, named after it: `IntLinear` with
   multiplier and shift becomes `IntLinear_5`. Inputs that an operator's attributes make it ignore are taken away,
2. every attribute is on the node, and with them what TensorRT's parser looks for: `plugin_namespace` and
   `plugin_version`,
3. every output is there, used or not,
4. a mask is cast to int8, where True is 1 as it is in the bytes of a boolean.

Such a graph is for TensorRT alone: nothing else knows these operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.errors import GraphError
from intaglio.plugins.contract import Operator
from intaglio.plugins.cuda.geometry import Tensor, launch
from intaglio.plugins.inlining import attributes, naming, operator_of
from intaglio.plugins.registry import DOMAIN

PLUGIN_VERSION = "1"  # the only one that quickly deployable plugins have
ANY_LENGTH = 2  # stands for a symbolic length where it is asked only whether there is a launch

# Operator -> the input whose last axis has to be a number, as it chooses the kernel or its constants.
WIDTH_INPUT = {"IntAttention": 0, "IntLayerNorm": 1}


def explicit(model: ir.Model) -> ir.Model:
    """Rewrite our operators in `model`, in place, as nodes of plugins; the model.

    Raises `GraphError` with the node's name for an operator that this version does not know, and for a node that no
    CUDA kernel takes: more than four axes where they broadcast, heads of more than 128 channels, a rank or a width
    that is not known.
    """
    int8_of: dict[ir.Value, ir.Value] = {}
    for graph in model.graphs():
        for node in [node for node in graph if node.domain == DOMAIN]:
            with naming(node):
                _rewrite(node, int8_of)
    return model


def plugin_name(operator: Operator, inputs: int) -> str:
    """The name of the plugin for nodes of an operator with so many inputs."""
    return f"{operator.name}_{inputs}"


def input_counts(operator: Operator) -> list[int]:
    """How many inputs a node of an operator can have: factors come as pairs of multiplier and shift, a mask alone."""
    required = sum(not each.optional for each in operator.inputs)
    steps = range(required, len(operator.inputs) + 1)
    return [count for count in steps if count == required or not operator.inputs[count - 1].name.endswith("multiplier")]


def plugin_dtype(dtype: str) -> str:
    """The dtype that a plugin has in the place of an operator's."""
    return "int8" if dtype == "bool" else dtype


def _rewrite(node: ir.Node, int8_of: dict[ir.Value, ir.Value]) -> None:
    operator = operator_of(node)
    complete = operator.complete(attributes(node))
    inputs = _inputs(operator, node, complete)
    _check_launch(operator, inputs, complete)
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        if operator.inputs[index].dtypes == ("bool",):
            node.replace_input_with(index, _as_int8(value, int8_of))
    for name, given in {**complete, "plugin_namespace": DOMAIN, "plugin_version": PLUGIN_VERSION}.items():
        node.attributes[name] = ir.convenience.convert_attribute(name, given)
    _add_outputs(operator, node, complete)
    node.op_type = plugin_name(operator, len(inputs))


def _inputs(operator: Operator, node: ir.Node, attributes: Mapping[str, Any]) -> list[ir.Value]:
    """The inputs that the node computes with. Raises `GraphError` for one of a pair without the other."""
    used = len(operator.inputs)
    if attributes.get("bits") == 32:  # the sums as they are
        used = sum(not each.optional for each in operator.inputs)
    elif attributes.get("activation") == "":
        used = len(operator.inputs) - 2  # what comes after the activation
    given = list(node.inputs[:used])
    while given and given[-1] is None:
        given.pop()
    present = [value for value in given if value is not None]
    if len(present) < len(given) or len(given) not in input_counts(operator):
        names = [each.name for each, value in zip(operator.inputs, given, strict=False) if value is not None]
        raise GraphError(
            f"{operator.name}: got the inputs {', '.join(names)}; expected all up to the last, and shifts with their "
            "multipliers. Give the missing ones."
        )
    return present


def _check_launch(operator: Operator, inputs: Sequence[ir.Value], attributes: Mapping[str, Any]) -> None:
    """Raise `EngineError` or `GraphError` where TensorRT would find no launch of a kernel."""
    tensors = []
    for index, (spec, value) in enumerate(zip(operator.inputs, inputs, strict=False)):
        if value.shape is None:
            raise GraphError(f"{operator.name}: the rank of {spec.name} ({value.name}) is not known. Infer its shape.")
        if index == WIDTH_INPUT.get(operator.name) and not isinstance(value.shape[-1], int):
            raise GraphError(f"{operator.name}: the width of {spec.name} ({value.name}) is not a number. Make it one.")
        lengths = [length if isinstance(length, int) else ANY_LENGTH for length in value.shape]
        tensors.append(Tensor(lengths, spec.dtypes[0]))
    launch(operator.folder, tensors, attributes)


def _as_int8(mask: ir.Value, int8_of: dict[ir.Value, ir.Value]) -> ir.Value:
    """The mask in int8; one Cast for all nodes that share it."""
    if mask not in int8_of:
        cast = ir.Node("", "Cast", [mask], [ir.AttrInt64("to", ir.DataType.INT8)], name=f"{mask.name}/int8")
        output = cast.outputs[0]
        output.name, output.shape, output.dtype = f"{mask.name}_int8", mask.shape, ir.DataType.INT8
        int8_of[mask] = output
        producer = mask.producer()
        if producer is not None:
            assert producer.graph is not None
            producer.graph.insert_after(producer, cast)
        else:
            graph = mask.graph
            assert graph is not None
            graph.insert_before(graph[0], cast)
    return int8_of[mask]


def _add_outputs(operator: Operator, node: ir.Node, attributes: Mapping[str, Any]) -> None:
    """Make every output of the operator one of the node."""
    shapes = [None if value is None or value.shape is None else tuple(_lengths(value.shape)) for value in node.inputs]
    missing = [None] * (len(operator.inputs) - len(shapes))
    described = operator.outputs([*shapes, *missing], attributes)
    present = len(node.outputs)
    node.resize_outputs(len(described))
    for index in range(present, len(described)):
        output, description = node.outputs[index], described[index]
        output.name = f"{node.outputs[0].name}_{description.name}"
        output.shape = ir.Shape(description.shape)
        output.dtype = ir.DataType.from_numpy(np.dtype(description.dtype))


def _lengths(shape: ir.Shape) -> list[int | str | None]:
    return [length if isinstance(length, int) else length.value for length in shape]
