"""Convert the nodes of our operators to the form of TensorRT's plugins: nothing optional, nothing implied.

A plugin has a fixed number of inputs and outputs, no default attributes, and no tensors of bool or uint8. So

1. every choice of optional inputs is a plugin of its own, named after the first input of each group that is given:
   `IntLinear` with multiplier and shift is `IntLinear_multiplier`. Inputs that an operator's attributes make it ignore
   are removed,
2. every attribute is on the node, together with those that TensorRT's parser needs: `plugin_namespace` and
   `plugin_version`,
3. every output is present, used or not,
4. a mask is cast to int8, where True is 1, as in the bytes of a boolean,
5. zero points become int8 of the same bytes, which their kernels read as uint8; those that are not constant are cast,
   which keeps the bytes too. Slots of a cache that a plugin returns have to be elements of float32.

Weights stay constants of int8. TensorRT wants such a constant before a DequantizeLinear, but that is a rule of its own
layers: TensorRT-LLM's SmoothQuantGemm gets its int8 weights as an input, too (tensorrt_llm/quantization/functional.py).

Such a graph is for TensorRT alone: nothing else knows these operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.errors import GraphError
from intaglio.plugins.contract import Operator
from intaglio.plugins.cuda.compiler import SMS
from intaglio.plugins.cuda.launching.launches import launch
from intaglio.plugins.nodes import OurNode, add_outputs, lengths, naming, operator_of, read, tensors
from intaglio.plugins.registry import DOMAIN, OPS, UNPLUGGED

PLUGIN_VERSION = "1"  # the only one that quickly deployable plugins have
ANY_LENGTH = 2  # placeholder for a symbolic length when only the existence of a launch is checked


def plugged() -> list[Operator]:
    """The operators that are plugins."""
    return [operator for operator in OPS.values() if operator.name not in UNPLUGGED]


def explicit(model: ir.Model) -> ir.Model:
    """Rewrite our operators in `model`, in place, as plugin nodes; return the model.

    Raises `GraphError` with the node's name for an operator that this version does not know, and for a node that no
    CUDA kernel supports: more than four axes with broadcasting, heads of more than 128 channels, an unknown rank or
    width.
    """
    int8_of: dict[ir.Value, ir.Value] = {}
    for graph in model.graphs():
        for node in [node for node in graph if node.domain == DOMAIN]:
            with naming(node):
                found = read_plugged(node)
                operator, inputs, complete = found
                given = tensors(operator, inputs, lambda *_: ANY_LENGTH)
                launch(operator.folder, given, complete, min(SMS))  # or an error
                form = tuple(index for index, value in enumerate(inputs) if value is not None)
                become_plugin(node, found, plugin_name(operator, form), complete, int8_of)
    return model


def forms(operator: Operator) -> list[tuple[int, ...]]:
    """The possible selections of inputs for an operator's nodes on GPUs, as positions among its inputs."""
    names = [each.name for each in operator.inputs]
    required = [index for index, each in enumerate(operator.inputs) if not each.optional]
    found = []
    groups = [group for group in operator.groups if group.on_gpu]
    for count in range(len(groups) + 1):
        for chosen in combinations(groups, count):
            given = [name for group in chosen for name in group.names]
            fits = all(group.after is None or group.after in given for group in chosen)
            if fits and not any(group.instead_of in given for group in chosen):
                positions = [names.index(name) for name in given]
                found.append(tuple(sorted(required + positions)))
    return found


def plugin_name(operator: Operator, form: tuple[int, ...]) -> str:
    """The name of the plugin for nodes of an operator with the inputs of this form."""
    given = {operator.inputs[index].name for index in form}
    return "_".join([operator.name, *(group.names[0] for group in operator.groups if group.names[0] in given)])


def plugin_dtype(dtype: str) -> str:
    """The dtype of a plugin for an operator's dtype."""
    return "int8" if dtype in ("bool", "uint8") else dtype


def read_plugged(node: ir.Node) -> OurNode:
    """Read one of our nodes. Raises `GraphError` for one that is no plugin."""
    operator = operator_of(node)
    if operator.name in UNPLUGGED:
        raise GraphError(f"{operator.name} is no plugin of TensorRT. Build from the bundle that `export` wrote.")
    found = read(node)
    for output in operator.outputs([None] * len(found.inputs), found.attributes):
        if output.dtype == "uint8":
            raise GraphError(f"{operator.name}: {output.name} is uint8, which no plugin returns. Use element_bits=32.")
    return found


def become_plugin(
    node: ir.Node, found: OurNode, name: str, fields: Mapping[str, Any], int8_of: dict[ir.Value, ir.Value]
) -> None:
    """Make a node that was read a node of the plugin `name` with these fields; `int8_of`: what has been cast before."""
    operator, inputs, complete = found
    described = operator.outputs([None if each is None else lengths(each) for each in inputs], complete)
    present = [value for value in inputs if value is not None]
    node.resize_inputs(len(present))
    for index, value in enumerate(present):
        dtype = operator.inputs[inputs.index(value)].dtypes[0] if value.dtype is None else value.dtype.numpy().name
        node.replace_input_with(index, _as_int8(value, int8_of) if plugin_dtype(dtype) != dtype else value)
    node.attributes.clear()  # TensorRT passes them on in the spec's order
    for field, given in {**fields, "plugin_namespace": DOMAIN, "plugin_version": PLUGIN_VERSION}.items():
        node.attributes[field] = ir.convenience.convert_attribute(field, given)
    add_outputs(node, described, {spec.name: value for spec, value in zip(operator.inputs, inputs, strict=True)})
    node.op_type = name


def _as_int8(value: ir.Value, int8_of: dict[ir.Value, ir.Value]) -> ir.Value:
    """A mask or zero points in int8; one cast for all nodes that share them."""
    if value not in int8_of:
        bytes_known = value.is_initializer() and value.dtype == ir.DataType.UINT8
        int8_of[value] = _same_bytes(value) if bytes_known else _cast(value)
    return int8_of[value]


def _cast(value: ir.Value) -> ir.Value:
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", ir.DataType.INT8)], name=f"{value.name}/int8")
    output = cast.outputs[0]
    output.name, output.shape, output.dtype = f"{value.name}_int8", value.shape, ir.DataType.INT8
    producer = value.producer()
    if producer is not None:
        assert producer.graph is not None
        producer.graph.insert_after(producer, cast)
    else:
        graph = value.graph
        assert graph is not None
        graph.insert_before(graph[0], cast)
    return output


def _same_bytes(value: ir.Value) -> ir.Value:
    """A constant with the bytes of `value`; an initializer of the graph."""
    assert value.const_value is not None
    name = f"{value.name}_int8"
    tensor = ir.tensor(value.const_value.numpy().view(np.int8), name=name)
    made = ir.Value(name=name, shape=value.shape, type=ir.TensorType(ir.DataType.INT8), const_value=tensor)
    graph = value.graph
    assert graph is not None
    graph.register_initializer(made)
    return made
