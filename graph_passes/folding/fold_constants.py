"""FoldConstants: precompute everything that does not depend on the inputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import (
    Array,
    add_constant_before,
    all_graphs,
    all_nodes,
    constant,
    has_subgraphs,
    infer_shapes,
    opset,
    remove_if_dead,
    remove_initializer_if_dead,
)
from intaglio.plugins.nodes import take_over

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
QUANTIZED = frozenset({"DequantizeLinear", "QuantizeLinear"})  # folding them would undo the compression
NOT_FOLDED = RANDOM | QUANTIZED | {"Constant", "Dropout"}


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Replace, in the graph and in the bodies of If and Loop:

    1. a node whose inputs are all constants by its result, computed by onnx.reference,
    2. Shape and Size of a tensor whose shape the graph states,
    3. Identity by its input, unless its output is the graph's,

    and remove unused nodes and initializers.

    Results keep their names. Left: random operators, quantisation, nodes with bodies, and, with a reason: nodes of
    other domains; a Transpose or Cast of a floating-point matrix with other uses (a head tied to the embeddings would
    be stored twice and no longer recognised as tied); results that would make the model grow by more than `max_bytes`
    (bytes of the result minus those of the constants that become unused), or whose size is unknown.
    """

    name: ClassVar[str] = "fold_constants"
    effect: ClassVar[Effect] = Effect.EXACT
    max_bytes: int = 1 << 20

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        before = -1
        while sum(counts.rewritten.values()) > before:  # a folded shape lets more shapes be inferred
            before = sum(counts.rewritten.values())
            infer_shapes(model)
            for node in all_nodes(model):
                if node.graph is not None:
                    self._fold(node, model, counts)
        if removed := _remove_unused(model):
            counts.add("unused", removed)
        if not counts.rewritten:
            counts.leave("no Identity, nothing unused, and no node that depends on constants alone and could be folded")

    def _fold(self, node: ir.Node, model: ir.Model, counts: Counts) -> None:
        if node.op_type in NOT_FOLDED or has_subgraphs(node):
            return
        if node.op_type == "Identity" and node.domain == "":
            if _bypass(node):
                counts.add("identities")
            return
        result = _static_shape(node)
        if result is None:
            inputs = [constant(value) for value in node.inputs]
            if not inputs or any(
                tensor is None for tensor, v in zip(inputs, node.inputs, strict=True) if v is not None
            ):
                return
            if node.domain != "":
                counts.leave(f"{node.domain}.{node.op_type} {node.name!r}: constant, but not a standard operator")
                return
            if _copies_a_matrix(node):
                counts.leave(f"{node.op_type} {node.name!r}: constant, but its matrix is used elsewhere too")
                return
            result = self._evaluate(node, model, counts)
        if result is not None:
            _replace(node, result)
            counts.add("constants")

    def _evaluate(self, node: ir.Node, model: ir.Model, counts: Counts) -> list[Array] | None:
        what = f"{node.op_type} {node.name!r}"
        constants = [(value, constant(value)) for value in node.inputs if value is not None]
        feeds = {str(value.name): tensor.numpy() for value, tensor in constants if tensor is not None}
        expected = _output_types(node, feeds, model)
        sizes = [_bytes(kind) for kind in expected]
        growth = sum(size or 0 for size in sizes) - _superfluous(node)
        if None in sizes:
            counts.leave(f"{what}: constant, but the size of its result is unknown")
            return None
        if growth > self.max_bytes:
            counts.leave(f"{what}: constant, but the model would grow by {growth} bytes, the limit is {self.max_bytes}")
            return None
        try:
            with np.errstate(all="ignore"):
                proto = ir.serde.serialize_node(node)
                results = ReferenceEvaluator(proto, opsets=dict(model.opset_imports)).run(None, feeds)
        except Exception as error:  # operators of the reference raise various exceptions: then the node stays
            counts.leave(f"{what}: constant, but onnx.reference cannot compute it ({type(error).__name__})")
            return None
        arrays = [np.asarray(result) for result in results]
        if [_described(array) for array in arrays] != [_described_type(kind) for kind in expected]:
            counts.leave(
                f"{what}: constant, but onnx.reference returns another dtype or shape than the standard requires"
            )
            return None
        return arrays


def _copies_a_matrix(node: ir.Node) -> bool:
    """Whether folding `node` stores the same floating-point matrix a second time."""
    value, tensor = node.inputs[0], constant(node.inputs[0])
    if node.op_type not in ("Cast", "Transpose") or value is None or tensor is None:
        return False
    return (
        len(tensor.shape) == 2
        and tensor.dtype.is_floating_point()
        and any(user is not node for user, _ in value.uses())
    )


def _remove_unused(model: ir.Model) -> int:
    """Remove unused nodes and initializers; return their number."""
    sizes = [len(graph) + len(graph.initializers) for graph in all_graphs(model)]
    for node in reversed(all_nodes(model)):
        remove_if_dead(node)
    for value in list(model.graph.initializers.values()):
        remove_initializer_if_dead(value)
    return sum(sizes) - sum(len(graph) + len(graph.initializers) for graph in all_graphs(model))


def _bypass(node: ir.Node) -> bool:
    """Connect the users of an Identity to its input; return whether it was removed."""
    source, output = node.inputs[0], node.outputs[0]
    if source is None or output.is_graph_output():
        return False
    output.replace_all_uses_with(source)
    remove_if_dead(node)
    return True


def _static_shape(node: ir.Node) -> list[Array] | None:
    """Return the output of Shape or Size, if the graph states the shape."""
    value = node.inputs[0] if node.inputs else None
    if node.op_type not in ("Shape", "Size") or node.domain != "" or value is None or value.shape is None:
        return None
    start = node.attributes["start"].as_int() if "start" in node.attributes else 0
    end = node.attributes["end"].as_int() if "end" in node.attributes else len(value.shape)
    lengths = list(value.shape)[start:end]
    known = [length for length in lengths if isinstance(length, int)]
    if len(known) < len(lengths):
        return None
    return [np.array(math.prod(known) if node.op_type == "Size" else known, np.int64)]


def _output_types(node: ir.Node, feeds: dict[str, Array], model: ir.Model) -> list[Any]:
    """Return the ONNX type of every output from shape inference; None where it has none."""
    proto = ir.serde.serialize_node(node)
    schema = onnx.defs.get_schema(node.op_type, opset(model), "")
    types = {
        name: onnx.helper.make_tensor_type_proto(ir.DataType.from_numpy(array.dtype), array.shape)
        for name, array in feeds.items()
    }
    small = {  # contents that shapes depend on: lengths, axes, repeats
        name: onnx.numpy_helper.from_array(array) for name, array in feeds.items() if array.size <= 1024
    }
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, small, opset_imports=opsets, ir_version=model.ir_version
        )
    except onnx.shape_inference.InferenceError:
        return [None]
    return [inferred.get(str(value.name)) for value in node.outputs]


def _described_type(kind: Any) -> tuple[int, tuple[int, ...]] | None:
    """Return the ONNX dtype and shape of a tensor type; None unless all of it is known."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
        return None
    lengths = kind.tensor_type.shape.dim
    if not all(length.HasField("dim_value") for length in lengths):
        return None
    return kind.tensor_type.elem_type, tuple(length.dim_value for length in lengths)


def _described(array: Array) -> tuple[int, tuple[int, ...]]:
    return int(ir.DataType.from_numpy(array.dtype)), array.shape


def _bytes(kind: Any) -> int | None:
    described = _described_type(kind)
    if described is None:
        return None
    return math.ceil(math.prod(described[1]) * ir.DataType(described[0]).itemsize)


def _superfluous(node: ir.Node) -> int:
    """Return the bytes of the constants that only this node uses."""
    return sum(
        tensor.nbytes
        for value in set(node.inputs)
        if value is not None and (tensor := constant(value)) is not None
        if not value.is_graph_output() and all(user is node for user, _ in value.uses())
    )


def _replace(node: ir.Node, arrays: list[Array]) -> None:
    """Replace the node's outputs by the results: initializers, or Constant nodes for a graph's outputs."""
    assert node.graph is not None
    graph, inputs = node.graph, [value for value in node.inputs if value is not None]
    for output, array in zip(node.outputs, arrays, strict=True):
        name = str(output.name)
        if output.is_graph_output():
            made = add_constant_before(node, array, "")
            take_over(output, made)
        elif output.uses():
            tensor = ir.tensor(array, name=name)
            made = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
            made.const_value = tensor
            take_over(output, made)
            made.type, made.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
            graph.register_initializer(made)
    remove_if_dead(node)
    for value in inputs:
        remove_initializer_if_dead(value)
