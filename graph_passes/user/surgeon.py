"""Surgeon: run the user's own function on an `onnx_graphsurgeon` graph, checked and recorded as any pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.bundle import TensorSpec, tensor_spec
from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError, UsageError, one_line
from intaglio.extras import load as load_library
from intaglio.graph_passes.checker import check
from intaglio.graph_passes.contract import Counts, Need, Pass, PassInputs
from intaglio.graph_passes.differences import differences, equal, weights
from intaglio.graph_passes.graphs import all_graphs, all_nodes, all_values
from intaglio.graph_passes.user.code import UserFunction, split

LIBRARY = "onnx_graphsurgeon"
LARGEST = (1 << 31) - 1  # maximum bytes of weights in an ONNX protobuf message, which the library works on


@dataclass(frozen=True)
class Surgeon(Pass):
    """Call `function` (`module:function` of `user_code.py`) with an `onnx_graphsurgeon.Graph`, which it changes.

    1. It changes the graph in place and returns None, or returns a new graph.
    2. The result must pass ONNX's checker and its shape inference, and keep the graph's inputs and outputs with their
       order, dtypes and shapes. Nodes and weights that were added, removed and changed are counted.
    3. `effect` is how the function changes the numbers, declared by its author; by default the strongest effect. The
       manifest records it with the function's name and the SHA-256 of its source.
    4. Statistics of an earlier `calibrate` are dropped, as they may no longer be valid.

    Raises `UsageError` for a function that is missing, fails or returns something else, `GraphError` for an invalid
    result and for weights of more than 2 GB, `MissingExtraError` without the library.
    """

    name: ClassVar[str] = "surgeon"
    main_option: ClassVar[str | None] = "function"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CODE})
    function: str
    effect: Effect = Effect.REPLACED

    def __post_init__(self) -> None:
        super().__post_init__()
        split(self.function)

    def prepare(self, inputs: PassInputs) -> None:
        """Load the library and the function."""
        load_library(LIBRARY)
        inputs.code.function(self.function)

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> ir.Model:
        """Return the model that the function made from `model`."""
        function = inputs.code.function(self.function)
        counts.facts["sha256"] = function.sha256
        made = _changed(model, function)
        check(made, f"{self.function} produced", "Fix the function; set a shape that is no longer valid to None.", True)
        _check_interface(self.function, model, made)
        counts.rewritten = differences(model, made)
        if not counts.rewritten:
            counts.leave(f"{self.function} changed nothing")
        if any(value.meta for value in all_values(model)):
            counts.leave("earlier statistics of activations were dropped: calibrate after this pass")
        _keep_unchanged_weights(model, made)
        made.meta.update(model.meta)
        made.metadata_props.update(model.metadata_props)
        return made


def _changed(model: ir.Model, function: UserFunction) -> ir.Model:
    """Apply `function` to a copy of `model` and return the result."""
    surgeon = load_library(LIBRARY)
    size = sum(tensor.nbytes for tensor in weights(model).values())
    if size > LARGEST:
        raise GraphError(
            f"{function.name}: the weights take {size / 1e9:.1f} GB, expected at most {LARGEST / 1e9:.1f}, the limit "
            "of onnx-graphsurgeon. Put it after a pass that stores them in fewer bits."
        )
    message = ir.serde.serialize_model(_in_memory(model))
    with redirect_stdout(StringIO()):  # drop its log, which repeats its exceptions
        graph = surgeon.import_onnx(message)
    returned = function(graph)
    if returned is not None and not isinstance(returned, surgeon.Graph):
        raise UsageError(
            f"{function.name}: returned {type(returned).__name__}, expected an onnx_graphsurgeon.Graph, or None if it "
            "changed its argument in place. Return the graph."
        )
    try:
        with redirect_stdout(StringIO()):
            exported: Any = surgeon.export_onnx(graph if returned is None else returned)
        return ir.serde.deserialize_model(exported)
    except Exception as error:  # an invalid graph can raise anything
        raise GraphError(
            f"{function.name}: produced a graph that cannot be exported ({one_line(error, 200)}). Fix the function."
        ) from error


def _in_memory(model: ir.Model) -> ir.Model:
    """Copy `model` with external tensors loaded into memory, as the library does not find their files."""
    copy = model.clone()
    for graph in all_graphs(copy):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _read(value.const_value)
    for node in all_nodes(copy):
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                node.attributes[name] = ir.AttrTensor(name, _read(attribute.as_tensor()))
    return copy


def _read(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    read = ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, name=tensor.name)
    tensor.release()
    return read


def _keep_unchanged_weights(before: ir.Model, after: ir.Model) -> None:
    """Reuse the tensors of `before` for unchanged weights, as they may be memory-mapped."""
    known = weights(before)
    for graph in all_graphs(after):
        for value in graph.initializers.values():
            old = known.get(str(value.name))
            if old is not None and value.const_value is not None and equal(old, value.const_value):
                value.const_value = old


def _check_interface(name: str, before: ir.Model, after: ir.Model) -> None:
    """Raise `GraphError` if the graph's inputs or outputs differ."""
    sides = [("inputs", _inputs(before), _inputs(after))]
    sides.append(("outputs", list(map(tensor_spec, before.graph.outputs)), list(map(tensor_spec, after.graph.outputs))))
    for what, expected, got in sides:
        if got != expected:
            raise GraphError(
                f"{name}: got the {what} {_shown(got)}, expected {_shown(expected)}, which the bundle has. "
                "Keep their names, order, dtypes and shapes."
            )


def _inputs(model: ir.Model) -> list[TensorSpec]:
    return [tensor_spec(value) for value in model.graph.inputs if not value.is_initializer()]


def _shown(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{each.name} {each.dtype}[{', '.join(map(str, each.shape))}]" for each in specs) or "none"
