"""State the shapes of reshapes as constants, or at least the lengths that are known, instead of computing them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass


def state_shapes(model: ir.Model) -> None:
    """Replace the shapes that reshapes compute by constants, where 0 stands for the length of the axis in this place.

    So a graph computes no lengths from those of its inputs, and needs no caches for it beyond those that it reads.
    """
    for node in list(model.graph.all_nodes()):
        given = node.inputs[1] if node.op_type == "Reshape" else None
        if given is None or given.const_value is not None or (shape := _constant_shape(node)) is None:
            continue
        x, result = node.inputs[0], node.outputs[0]
        if x is not None and x.shape == result.shape and not result.is_graph_output():
            result.replace_all_uses_with(x)
            continue
        name = "shape_" + "_".join("rest" if length == -1 else str(length) for length in shape)
        node.replace_input_with(1, _constant(model.graph, name, shape))
        node.attributes.pop("allowzero", None)
    RemoveUnusedNodesPass()(model)
    state_lengths(model)


def _constant_shape(node: ir.Node) -> list[int] | None:
    """The shape of a reshape with at most one -1, or None."""
    x, result = node.inputs[0], node.outputs[0].shape
    if x is None or x.shape is None or result is None or 0 in result:
        return None
    shape = [
        length if isinstance(length, int) else 0 if axis < len(x.shape) and x.shape[axis] == length else -1
        for axis, length in enumerate(result)
    ]
    return shape if shape.count(-1) < 2 else None


def state_lengths(model: ir.Model) -> None:
    """Replace the -1 in the shapes that reshapes get by the length, where the graph's shapes say it.

    TensorRT computes a -1 from lengths of its own, which behind a convolution are not known to be those of the tokens:
    the number of heads would not be constant, as caches need it to be.
    """
    for node in list(model.graph):
        given, shape = node.inputs[1] if node.op_type == "Reshape" else None, node.outputs[0].shape
        joined = given.producer() if given is not None else None
        if given is None or joined is None or joined.op_type != "Concat" or shape is None:
            continue
        if len(shape) != len(joined.inputs):
            continue
        lengths = [
            length if isinstance(length, int) and _is_computed(value) else None
            for length, value in zip(shape, joined.inputs, strict=True)
        ]
        if any(length is not None for length in lengths):
            parts = [
                value if length is None else _constant(model.graph, f"length_{length}", [length])
                for length, value in zip(lengths, joined.inputs, strict=True)
            ]
            stated = ir.node("Concat", parts, {"axis": 0})
            stated.outputs[0].type, stated.outputs[0].shape = given.type, given.shape
            model.graph.insert_before(node, stated)
            node.replace_input_with(1, stated.outputs[0])


def _is_computed(value: ir.Value | None) -> bool:
    """Whether an entry of the shape is the constant -1."""
    return (
        value is not None
        and value.const_value is not None
        and value.const_value.size == 1
        and int(value.const_value.numpy().reshape(())) == -1
    )


def _constant(graph: ir.Graph, name: str, numbers: list[int]) -> ir.Value:
    """The initializer of this name."""
    if name not in graph.initializers:
        tensor = ir.tensor(np.array(numbers), name=name)
        shape = ir.Shape([len(numbers)])
        graph.register_initializer(
            ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        )
    return graph.initializers[name]
