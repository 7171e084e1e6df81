"""State the lengths of the axes of a reshape that are known, instead of leaving one to be computed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


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
                value if length is None else _constant(model.graph, length)
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


def _constant(graph: ir.Graph, length: int) -> ir.Value:
    """The initializer [1] of a length."""
    name = f"length_{length}"
    if name not in graph.initializers:
        tensor = ir.tensor(np.array([length]), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([1]), const_value=tensor)
        graph.register_initializer(value)
    return graph.initializers[name]
