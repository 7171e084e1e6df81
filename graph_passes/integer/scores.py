"""Recognise the scores of an attention: MatMul, one factor, a bias of positions, a mask, Softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from intaglio.graph_passes.graphs import constant
from intaglio.graph_passes.quantize_dequantize.quantize_activations import is_mask_add, scalar_factor
from intaglio.graph_passes.quantize_dequantize.quantized import LAYOUT, Quantized, Writer, quantized
from intaglio.graph_passes.quantize_dequantize.region import is_embedding

POSITIONED = {*LAYOUT, "Expand"}  # between a table of positions and the scores
LOWEST = -1e4  # a mask adds this or less at masked positions


@dataclass(frozen=True)
class Operand:
    """One side of a matrix product: integers, behind layout nodes and a factor."""

    integers: Quantized
    factor: float  # scale and constant factors together
    layout: list[ir.Node]  # in order, starting at the integers


@dataclass(frozen=True)
class Scores:
    """The input of a Softmax: factor·(a·b), with a bias and a mask."""

    product: ir.Node
    factor: float
    mask: ir.Value | None  # the additive mask, floating point
    keep: ir.Value | None  # bool, True where the scores count
    bias: PositionBias | None


@dataclass(frozen=True)
class PositionBias:
    """Rows of a table [buckets, heads] by relative position, brought to [batch or 1, heads, queries, keys]."""

    gather: ir.Node
    layout: list[ir.Node]  # in order, without an Expand at the end


def operand(value: ir.Value | None) -> Operand | str:
    """Return the integers behind `value`, or the reason why there are none."""
    layout: list[ir.Node] = []
    factor = 1.0
    while value is not None and quantized(value) is None:
        node = value.producer()
        if node is not None and node.op_type in LAYOUT and node.domain == "":
            layout.insert(0, node)
            value = node.inputs[0]
        elif node is not None and node.op_type in ("Mul", "Div") and (number := scalar_factor(node)) is not None:
            factor *= number
            value = next(each for each in node.inputs if each is not None and constant(each) is None)
        else:
            return f"{value.name} is not in Q/DQ form"
    found = quantized(value)
    if found is None or found.bits != 8 or found.per_tensor is None:
        return "an input of the attention is not in 8 bits with one scale"
    return Operand(found, factor * found.per_tensor, layout)


def scores_of(softmax: ir.Node, writer: Writer) -> Scores | str:
    """Return the scores of a Softmax over the last axis, or the reason why they do not match."""
    value = softmax.inputs[0]
    axis, shape = softmax.attributes.get_int("axis", -1), None if value is None else value.shape
    if value is None or (axis != -1 and (shape is None or axis != len(shape) - 1)):
        return f"{softmax.outputs[0].name}: not over the last axis"
    factor, mask, keep, bias = 1.0, None, None, None
    node = value.producer()
    while node is not None and node.op_type in ("Add", "Mul", "Div"):
        number = None if node.op_type == "Add" else scalar_factor(node)
        if node.op_type == "Add" and factor == 1.0:
            sides = [(node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])]
            found = next(((rest, side, kept) for rest, side in sides if (kept := keep_mask(side, node, writer))), None)
            added = next(((rest, table) for rest, side in sides if (table := position_bias(side))), None)
            if mask is None and found is not None:
                value, mask, keep = found
            elif bias is None and added is not None:
                value, bias = added
            else:
                return (
                    f"{node.outputs[0].name}: the term added to the scores is neither a mask of 0 and {LOWEST:g} or "
                    "less nor a table's bias of relative positions"
                )
        elif number is not None:
            factor *= number
            value = next(each for each in node.inputs if each is not None and constant(each) is None)
        else:
            return f"{node.outputs[0].name}: {node.op_type} in the scores with more than one number"
        node = None if value is None else value.producer()
    if node is None or node.op_type != "MatMul":
        return f"{softmax.outputs[0].name}: its scores are not a matrix product"
    return Scores(node, factor, mask, keep, bias)


def position_bias(value: ir.Value | None) -> PositionBias | None:
    """Return the bias of relative positions that `value` is; None for anything else."""
    layout: list[ir.Node] = []
    node = None if value is None else value.producer()
    while node is not None and node.op_type in POSITIONED and node.inputs[0] is not None:
        if node.op_type != "Expand":
            layout.insert(0, node)
        elif layout:
            return None
        node = node.inputs[0].producer()
    return PositionBias(node, layout) if node is not None and is_embedding(node) else None


def is_position_bias(gather: ir.Node) -> bool:
    """Whether the rows of a table are added to the scores of attentions and used by nothing else."""
    users = [user for user, _ in gather.outputs[0].uses()]
    return bool(users) and all(
        is_mask_add(user) if user.op_type == "Add" else user.op_type in POSITIONED and is_position_bias(user)
        for user in users
    )


def keep_mask(added: ir.Value | None, before: ir.Node, writer: Writer) -> ir.Value | None:
    """Return the booleans of an additive mask, True where it is 0; None if it is not a mask.

    1. Where(keep, 0, low), and Where(hide, low, 0), whose condition is negated.
    2. (1 - Cast(keep))·low, as older exporters write it.
    """
    node = None if added is None else added.producer()
    if node is None or added is None:
        return None
    if node.op_type == "Where":
        condition, yes, no = node.inputs[0], _number(node.inputs[1]), _number(node.inputs[2])
        if condition is None or yes is None or no is None:
            return None
        if yes == 0 and no <= LOWEST:
            return condition
        if no == 0 and yes <= LOWEST:
            return _bool(writer, before, "Not", [condition], added)
        return None
    if node.op_type == "Mul":
        for first, second in ((0, 1), (1, 0)):
            difference, low = node.inputs[first], _number(node.inputs[second])
            subtract = None if difference is None else difference.producer()
            if low is None or low > LOWEST or subtract is None or subtract.op_type != "Sub":
                continue
            if _number(subtract.inputs[0]) == 1 and subtract.inputs[1] is not None:
                return _bool(writer, before, "Cast", [subtract.inputs[1]], added, to=ir.DataType.BOOL)
    return None


def _bool(
    writer: Writer, before: ir.Node, op_type: str, inputs: list[ir.Value], like: ir.Value, **attributes: Any
) -> ir.Value:
    """Add a node of booleans, one for all attentions that share the mask."""
    name = f"{like.name}_keep"
    for user, _ in inputs[0].uses():
        if user.op_type == op_type and str(user.name) == name:
            return user.outputs[0]
    producer = like.producer()
    assert producer is not None
    made = writer.node(producer, op_type, inputs, name, **attributes).outputs[0]
    made.dtype, made.shape = ir.DataType.BOOL, inputs[0].shape
    return made


def _number(value: ir.Value | None) -> float | None:
    tensor = constant(value)
    return float(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None
