"""IntegerAttention: replace scores, Softmax and values of multi-head attention by one IntAttention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant
from intaglio.graph_passes.integer.emit import share
from intaglio.graph_passes.integer.scores import Operand, PositionBias, operand, scores_of
from intaglio.graph_passes.quantize_dequantize.quantized import LAYOUT, Writer, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region
from intaglio.plugins.int_attention.spec import BIASES
from intaglio.plugins.integer_math import AVERAGE_FRACTION

HEADS_FIRST = (0, 2, 1, 3)  # [batch, length, heads, depth] -> [batch, heads, length, depth]
DEPTH_SECOND = (0, 2, 3, 1)  # of the keys: [batch, heads, depth, length]


@dataclass(frozen=True)
class IntegerAttention(Pass):
    """Softmax(factor·q·kᵀ + bias + mask)·v → Q becomes IntAttention.

    1. q, k, v are int8 with one scale each, split into heads by Reshape and Transpose, and joined the same way.
    2. A factor is applied to the scores, or to q or k. The mask is 0 or very low, and is replaced by its booleans.
    3. A bias of relative positions, rows of a table for the heads, becomes int32 at the scale of the scores.
    4. The probabilities are not rounded to 8 bits, unlike those of a separate Softmax: their Q/DQ pair is removed.
    5. Left, with the reason: everything else, which integer_softmax may convert.
    """

    name: ClassVar[str] = "integer_attention"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in model_region(model):
            if node.op_type != "Softmax" or node.domain != "" or node.graph is None:
                continue
            counts.note("attention", _replace(writer, node))


def _replace(writer: Writer, softmax: ir.Node) -> str | None:
    """Insert the IntAttention, or return the reason why not."""
    scores = scores_of(softmax, writer)
    if isinstance(scores, str):
        return scores
    product = _product_of_probabilities(softmax)
    if product is None:
        return f"{softmax.outputs[0].name}: is not used by exactly one matrix product"
    sides = [operand(scores.product.inputs[0]), operand(scores.product.inputs[1]), operand(product.inputs[1])]
    for side in sides:
        if isinstance(side, str):
            return side
    query, key, value = (side for side in sides if isinstance(side, Operand))
    layouts = [_heads(query), _heads(key), _heads(value)]
    heads = layouts[0][0] if layouts[0] else None
    if heads is None or layouts != [(heads, HEADS_FIRST), (heads, DEPTH_SECOND), (heads, HEADS_FIRST)]:
        return f"{softmax.outputs[0].name}: its inputs are not split into heads as [batch, heads, length, depth]"
    joined = _joined(product)
    if joined is None:
        return f"{product.outputs[0].name}: its heads are not joined as [batch, length, heads·depth]"
    consumers = quantizers(joined)
    if isinstance(consumers, str):
        return consumers
    first = next((consumer for consumer in consumers if consumer.bits == 8), None)
    if first is None:
        return f"{joined.name}: is not used in 8 bits"
    before = joined.producer()
    assert before is not None
    scale = scores.factor * query.factor * key.factor
    bias = None
    if scores.bias is not None:
        if scores.keep is None:
            return f"{softmax.outputs[0].name}: its scores have a bias and no mask"
        bias = _integer_bias(writer, before, scores.bias, scale)
        if bias is None:
            return f"{softmax.outputs[0].name}: the bias of its scores is more than 2^30 times as large as one unit"
    factors = writer.dyadics(value.factor / 2**AVERAGE_FRACTION / first.scale, f"{joined.name}.requantize")
    made = writer.integer(
        before,
        "IntAttention",
        [*(side.integers.integers for side in (query, key, value)), *factors, scores.keep, bias],
        joined,
        num_heads=heads,
        scale=scale,
    )
    share(writer, before, made.outputs[0], first, consumers, joined)
    return None


def _integer_bias(writer: Writer, before: ir.Node, bias: PositionBias, scale: float) -> ir.Value | None:
    """Return the bias in units of `scale`: int32 [1, heads, queries, keys]; None if it does not fit."""
    table, rows = constant(bias.gather.inputs[0]), bias.gather.outputs[0]
    assert table is not None
    units = np.rint(table.numpy().astype(np.float64) / scale)
    if not (np.abs(units) <= BIASES[1]).all():
        return None
    name = f"{rows.name}_int32"
    inputs = [writer.constant(units.astype(np.int32), f"{name}.table"), bias.gather.inputs[1]]
    value, source = writer.node(before, "Gather", inputs, name).outputs[0], rows
    value.dtype, value.shape = ir.DataType.INT32, source.shape
    for node in bias.layout:
        attributes = {key: attribute.value for key, attribute in node.attributes.items()}
        value = writer.node(before, node.op_type, [value, *node.inputs[1:]], f"{name}_heads", **attributes).outputs[0]
        value.dtype, value.shape = ir.DataType.INT32, node.outputs[0].shape
    return value


def _product_of_probabilities(softmax: ir.Node) -> ir.Node | None:
    """Return the MatMul that multiplies the probabilities, optionally through a Q/DQ pair, with values."""
    value = softmax.outputs[0]
    while True:
        users = [user for user, _ in value.uses()]
        if len(users) != 1 or value.is_graph_output():
            return None
        if users[0].op_type == "MatMul":
            return users[0] if users[0].inputs[0] is value else None
        if users[0].op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return None
        value = users[0].outputs[0]


def _heads(side: Operand) -> tuple[int, tuple[int, ...]] | None:
    """Return the number of heads that the channels are split into, and the order of the four axes."""
    heads: int | None = None
    order: tuple[int, ...] = (0, 1, 2, 3)
    for node in side.layout:
        shape = node.outputs[0].shape
        if node.op_type == "Reshape" and heads is None and shape is not None and len(shape) == 4:
            source = node.inputs[0].shape if node.inputs[0] is not None else None
            count, depth = shape[2], shape[3]
            if source is None or len(source) != 3 or not isinstance(count, int) or not isinstance(depth, int):
                return None
            if source[2] != count * depth:
                return None
            heads = count
        elif node.op_type == "Transpose" and heads is not None:
            order = tuple(order[axis] for axis in node.attributes.get_ints("perm", (3, 2, 1, 0)))
        else:
            return None
    return None if heads is None else (heads, order)


def _joined(product: ir.Node) -> ir.Value | None:
    """Return the values with joined heads, [batch, length, heads·depth]."""
    value = product.outputs[0]
    order: tuple[int, ...] = (0, 1, 2, 3)
    while len(users := [user for user, _ in value.uses()]) == 1 and users[0].op_type in LAYOUT:
        node = users[0]
        value = node.outputs[0]
        if node.op_type == "Transpose":
            order = tuple(order[axis] for axis in node.attributes.get_ints("perm", (3, 2, 1, 0)))
        else:
            shape = value.shape
            return value if order == HEADS_FIRST and shape is not None and len(shape) == 3 else None
    return None
