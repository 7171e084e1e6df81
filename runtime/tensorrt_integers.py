"""Rewriting what TensorRT does not take of integers among standard operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


def widen(model: ir.Model) -> None:
    """Rewrite, in place, integers that TensorRT takes in another form only:

    1. DequantizeLinear of int32, with one scale or one per channel of the last axis, becomes a Cast and a Mul.
    2. Gather from an int8 table becomes Gather from the same numbers in float16, and a Cast back: TensorRT has int8
       constants only where they are dequantised. The engine holds two bytes for each number of such a table.
    """
    for node in list(model.graph):
        if node.op_type == "DequantizeLinear" and node.domain == "":
            _dequantize_by_product(model.graph, node)
        elif node.op_type == "Gather" and node.domain == "":
            _gather_float16(model.graph, node)


def _dequantize_by_product(graph: ir.Graph, node: ir.Node) -> None:
    x, scale, *zero_points = node.inputs
    assert x is not None and scale is not None
    if x.dtype != ir.DataType.INT32 or scale.dtype is None or zero_points or not _broadcasts(node, x, scale):
        return
    cast = _node(node, "Cast", [x], to=scale.dtype)
    _replace(graph, node, [cast, _node(node, "Mul", [cast.outputs[0], scale])])


def _broadcasts(node: ir.Node, x: ir.Value, scale: ir.Value) -> bool:
    """Whether the scales are one for all, or lie along the last axis of x."""
    if scale.shape is None or len(scale.shape) > 1:
        return False
    if len(scale.shape) == 0 or scale.shape[0] == 1:
        return True
    axis = node.attributes.get_int("axis", 1)
    return axis == -1 or (x.shape is not None and axis == len(x.shape) - 1)


def _gather_float16(graph: ir.Graph, node: ir.Node) -> None:
    table, indices = node.inputs
    assert table is not None and indices is not None
    if table.const_value is None or table.dtype != ir.DataType.INT8:
        return
    name = f"{table.name}_float16"
    if name not in graph.initializers:
        numbers = ir.tensor(table.const_value.numpy().astype(np.float16), name=name)
        graph.register_initializer(
            ir.Value(name=name, shape=table.shape, type=ir.TensorType(numbers.dtype), const_value=numbers)
        )
    rows = _node(node, "Gather", [graph.initializers[name], indices], axis=node.attributes.get_int("axis", 0))
    _replace(graph, node, [rows, _node(node, "Cast", [rows.outputs[0]], to=ir.DataType.INT8)])
    if not table.uses() and table.name is not None:
        del graph.initializers[table.name]


def _node(old: ir.Node, op_type: str, inputs: list[ir.Value], **attributes: Any) -> ir.Node:
    """A node in the place of `old`, named after it."""
    name = f"{old.name or old.outputs[0].name}/{op_type}"
    node = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes), name=name)
    node.outputs[0].name = f"{name}_0"
    return node


def _replace(graph: ir.Graph, old: ir.Node, new: list[ir.Node]) -> None:
    """Put `new` in the place of `old`; the last gives its output."""
    output, result = old.outputs[0], new[-1].outputs[0]
    result.name, result.type, result.shape = output.name, output.type, output.shape
    ir.convenience.replace_nodes_and_values(graph, old, [old], new, [output], [result])
