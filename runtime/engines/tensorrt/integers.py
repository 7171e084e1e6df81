"""Rewrite standard operators on integers that TensorRT does not support."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir


def widen(model: ir.Model) -> None:
    """Rewrite, in place, operators on integers that TensorRT supports only in another form:

    1. DequantizeLinear of int32, with one scale or one per channel of the last axis, becomes a Cast and a Mul.
    2. Gather from an int8 table, then DequantizeLinear, are swapped: TensorRT supports int8 constants only as inputs of
       DequantizeLinear. (Other engines would dequantise the whole table for a few of its rows.)
    3. Gather from an int8 table for other uses becomes Gather from the same values in float16, and a Cast back. The
       engine stores two bytes per element of such a table.
    """
    for node in list(model.graph):
        if node.graph is None:
            continue  # already replaced together with an earlier node
        if node.op_type == "DequantizeLinear" and node.domain == "":
            _dequantize_by_product(model.graph, node)
        elif node.op_type == "Gather" and node.domain == "" and not _gather_dequantized(model.graph, node):
            _gather_float16(model.graph, node)


def _dequantize_by_product(graph: ir.Graph, node: ir.Node) -> None:
    x, scale, *zero_points = node.inputs
    assert x is not None and scale is not None
    if x.dtype != ir.DataType.INT32 or scale.dtype is None or zero_points or not _broadcasts(node, x, scale):
        return
    cast = _node(node, "Cast", [x], to=scale.dtype)
    _replace(graph, node, [cast, _node(node, "Mul", [cast.outputs[0], scale])])


def _broadcasts(node: ir.Node, x: ir.Value, scale: ir.Value) -> bool:
    """Whether there is a single scale, or one per element of the last axis of x."""
    if scale.shape is None or len(scale.shape) > 1:
        return False
    if len(scale.shape) == 0 or scale.shape[0] == 1:
        return True
    axis = node.attributes.get_int("axis", 1)
    return axis == -1 or (x.shape is not None and axis == len(x.shape) - 1)


def has_int8_tables(model: onnx.ModelProto) -> bool:
    """Whether the graph gathers rows of int8 constants, which TensorRT does not support."""
    tables = {tensor.name for tensor in model.graph.initializer if tensor.data_type == ir.DataType.INT8}
    return any(node.op_type == "Gather" and node.input[0] in tables for node in model.graph.node)


def _gather_dequantized(graph: ir.Graph, node: ir.Node) -> bool:
    """Dequantise a table [rows, channels] before the Gather, if its rows have no other use."""
    (table, indices), rows = node.inputs, node.outputs[0]
    users = [user for user, _ in rows.uses()]
    if table is None or indices is None or table.const_value is None or table.dtype != ir.DataType.INT8:
        return False
    if len(table.const_value.shape) != 2 or node.attributes.get_int("axis", 0) != 0 or rows.is_graph_output():
        return False
    if not users or any(user.op_type != "DequantizeLinear" or not _by_channel(user, rows) for user in users):
        return False
    for user in users:
        scales = [value for value in user.inputs[1:] if value is not None]
        whole = _node(user, "DequantizeLinear", [table, *scales], axis=1)
        _replace(graph, user, [whole, _node(user, "Gather", [whole.outputs[0], indices], axis=0)])
    graph.remove(node, safe=True)
    return True


def _by_channel(node: ir.Node, rows: ir.Value) -> bool:
    """Whether a DequantizeLinear of gathered rows has constant scales, a single one or one per channel."""
    scale = node.inputs[1]
    if scale is None or scale.const_value is None or scale.shape is None or set(node.attributes) - {"axis"}:
        return False
    last = node.attributes.get_int("axis", 1) in (-1, None if rows.shape is None else len(rows.shape) - 1)
    return len(scale.shape) == 0 or (len(scale.shape) == 1 and last)


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
    """A node to replace `old`, named after it."""
    name = f"{old.name or old.outputs[0].name}/{op_type}"
    node = ir.Node("", op_type, inputs, ir.convenience.convert_attributes(attributes), name=name)
    node.outputs[0].name = f"{name}_0"
    return node


def _replace(graph: ir.Graph, old: ir.Node, new: list[ir.Node]) -> None:
    """Replace `old` by `new`; the last of them provides its output."""
    output, result = old.outputs[0], new[-1].outputs[0]
    result.name, result.type, result.shape = output.name, output.type, output.shape
    ir.convenience.replace_nodes_and_values(graph, old, [old], new, [output], [result])
