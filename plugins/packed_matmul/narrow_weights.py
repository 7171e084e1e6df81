"""Weights of 16 bits beside activations of float32, in standard operators: a Cast widens them.

    MatMul(x, W)       MatMul(x, Cast(W)); the same after a Transpose of W
    Gather(T, ids)     Cast(Gather(T, ids))

PackedMatMul reads the 16 bits; other runtimes widen a weight when they open the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from intaglio.plugins.group_matmul.minimums import completes_groups
from intaglio.plugins.nodes import take_over

HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
FLOAT = ir.DataType.FLOAT


def reason_against(weight: ir.Value) -> str | None:
    """Why the graph's initializer `weight` cannot be stored in 16 bits, if so; empty where it is no weight."""
    uses = [*weight.uses()]
    if completes_groups(weight.name) or not any(_reads(node, index) for node, index in uses):
        return ""
    if others := sorted({node.op_type for node, index in uses if not _reads(node, index)}):
        return f"{weight.name} is used by {', '.join(others)} too"
    if len({node.graph for node, _ in uses}) > 1 or weight.graph is not uses[0][0].graph:
        return f"{weight.name} is used in a graph within the graph too"
    return None


def narrow_weight(weight: ir.Value, tensor: ir.TensorProtocol, new_name: Callable[[str], str]) -> None:
    """Let `weight`, which nothing speaks against, have the numbers of `tensor`, and all that reads it read float32.

    `new_name` makes a name that no value has.
    """
    uses, graph = [*weight.uses()], weight.graph
    assert graph is not None
    weight.const_value, weight.type = tensor, ir.TensorType(tensor.dtype)
    for node in [node for node, _ in uses if node.op_type == "Gather"]:
        rows = node.outputs[0]
        read = ir.node("Gather", node.inputs, node.attributes, name=node.name)
        read.outputs[0].name = new_name(f"{rows.name}_narrow")
        read.outputs[0].type, read.outputs[0].shape = weight.type, rows.shape
        wide = ir.node("Cast", read.outputs, {"to": FLOAT}, name=new_name(f"{node.name}_wide"))
        for made in (read, wide):
            made.metadata_props.update(node.metadata_props)
        graph.insert_before(node, [read, wide])
        take_over(rows, wide.outputs[0])
        graph.remove(node, safe=True)
    others = [(node, index) for node, index in uses if node.op_type != "Gather"]
    if others:
        wide = ir.node("Cast", [weight], {"to": FLOAT}, name=new_name(f"{weight.name}_wide"))
        wide.outputs[0].name, wide.outputs[0].shape, wide.outputs[0].type = (
            wide.name,
            weight.shape,
            ir.TensorType(FLOAT),
        )
        readers = {node for node, _ in others}
        graph.insert_before(next(node for node in graph if node in readers), wide)
        for node, index in others:
            node.replace_input_with(index, wide.outputs[0])


class Widened(NamedTuple):
    """The numbers of a weight in 16 bits, and the same in float32, computed where they are read."""

    narrow: ir.TensorProtocol
    wide: ir.TensorProtocol


def widen_weights(model: ir.Model, dtypes: Collection[ir.DataType] = HALVES) -> dict[str, Widened]:
    """Store weights of these `dtypes`, which Casts widen, in float32 under the same names; return them by name."""
    found = {
        name: Widened(weight.const_value, _in_float32(weight.const_value))
        for name, weight in model.graph.initializers.items()
        if weight.dtype in dtypes and weight.const_value is not None and weight.uses() and _is_narrow(weight)
    }
    for name, (_, wide) in found.items():
        weight = model.graph.initializers[name]
        weight.const_value = wide
        weight.type = ir.TensorType(FLOAT)
        for node, _ in [*weight.uses()]:
            if node.op_type == "Cast":
                node.outputs[0].replace_all_uses_with(weight)
                model.graph.remove(node, safe=True)
                continue
            rows = node.outputs[0]
            for cast in [user for user, _ in rows.uses()]:
                take_over(cast.outputs[0], rows)
                model.graph.remove(cast, safe=True)
    return found


def narrow_again(model: ir.Model, widened: Mapping[str, Widened], new_name: Callable[[str], str]) -> None:
    """Store those weights in 16 bits that still have the numbers that they were widened to."""
    for name, (stored, wide) in widened.items():
        weight = model.graph.initializers.get(name)
        if weight is not None and weight.const_value is wide and reason_against(weight) is None:
            narrow_weight(weight, stored, new_name)


def _is_narrow(weight: ir.Value) -> bool:
    """Whether all that reads the weight is widened to float32 at once."""
    for node, _ in weight.uses():
        readers = [node]
        if node.op_type == "Gather" and node.domain == "" and not node.outputs[0].is_graph_output():
            readers = [user for user, _ in node.outputs[0].uses()]
        elif node.outputs[0].is_graph_output():
            return False
        if len(readers) != 1 or not _widens(readers[0]) or {node.graph, readers[0].graph} != {weight.graph}:
            return False
    return True


def _widens(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.domain == "" and node.attributes["to"].as_int() == FLOAT


def _in_float32(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.LazyTensor(
        lambda: ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name),
        FLOAT,
        ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )


def _reads(node: ir.Node, index: int) -> bool:
    """Whether the node reads its input as a matrix, a table of rows, or to transpose it."""
    return node.domain == "" and (node.op_type, index) in (("MatMul", 1), ("Gather", 0), ("Transpose", 0))
