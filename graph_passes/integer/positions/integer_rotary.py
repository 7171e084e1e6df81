"""IntegerRotary: replace RotaryEmbedding by IntRotary, with cosines and sines looked up by integer angles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant, remove_if_dead
from intaglio.graph_passes.integer.emit import share
from intaglio.graph_passes.quantize_dequantize.quantized import Quantizer, Writer, quantized, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region
from intaglio.plugins.integer_math import UNIT

# Bits of a position's angle in turns: exact to 2^-41 of a turn for each position, below 2^63 for 2^22 of them.
TURN = 40
STEPS = 14  # bits of the table of a turn: an angle is off by at most π / 2^14


@dataclass(frozen=True)
class IntegerRotary(Pass):
    """DQ(x) → RotaryEmbedding → Q becomes IntRotary.

    1. Angles are positions, integers, times constant frequencies. They are computed as turns in Q40, of which the 14
       bits below one choose the row of a table with the cosines and sines of a turn, in Q14.
    2. Left, with the reason: inputs or outputs that are not in Q/DQ form with one scale, and other angles.
    """

    name: ClassVar[str] = "integer_rotary"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        tables: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        for node in model_region(model):
            if node.op_type != "RotaryEmbedding" or node.domain != "":
                continue
            counts.note("rotary embeddings", _replace(writer, node, tables))


def _replace(writer: Writer, node: ir.Node, tables: dict[ir.Value, tuple[ir.Value, ir.Value]]) -> str | None:
    """Insert the IntRotary, or return the reason why not."""
    result = node.outputs[0]
    x, consumers = quantized(node.inputs[0]), quantizers(result)
    if x is None or x.per_tensor is None:
        return f"{result.name}: its input is not integers with one scale"
    if isinstance(consumers, str):
        return consumers
    narrow = next((consumer for consumer in consumers if consumer.bits == 8 and consumer.scale.size == 1), None)
    if narrow is None:
        return f"{result.name}: is not used in 8 bits with one scale"
    angles = _angles(node)
    if angles is None:
        return f"{result.name}: its angles are not positions times constant frequencies"
    if angles not in tables:
        tables[angles] = _tables(writer, node, angles)
    factors = writer.dyadics(x.per_tensor / UNIT[1] / narrow.scale, f"{result.name}.requantize")
    inputs = [writer.int32(x.integers, node), *tables[angles], *factors]
    made = writer.integer(node, "IntRotary", inputs, result, num_heads=node.attributes["num_heads"].as_int())
    share(writer, node, made.outputs[0], Quantizer(node, narrow.scale, 8), consumers, result)
    remove_if_dead(node)
    return None


def _angles(node: ir.Node) -> ir.Value | None:
    """Return the angles [1, length, depth / 2] of which both tables of a RotaryEmbedding are computed."""
    found = []
    for value, op_type in zip(node.inputs[1:3], ("Cos", "Sin"), strict=True):
        rows = None if value is None else value.producer()
        curve = rows.inputs[0].producer() if rows is not None and rows.op_type == "Expand" and rows.inputs[0] else None
        found.append(curve.inputs[0] if curve is not None and curve.op_type == op_type else None)
    return found[0] if found[0] is found[1] and found[0] is not None and _factors(found[0]) else None


def _factors(angles: ir.Value) -> tuple[ir.Value, np.ndarray] | None:
    """Return the positions, int64 [1, length, 1], and the frequencies [depth / 2] whose product is `angles`."""
    product = angles.producer()
    if product is None or product.op_type != "Mul" or angles.shape is None:
        return None
    for first, second in (product.inputs, product.inputs[::-1]):
        cast, frequencies = None if first is None else first.producer(), constant(second)
        positions = cast.inputs[0] if cast is not None and cast.op_type == "Cast" else None
        if positions is None or frequencies is None or positions.dtype != ir.DataType.INT64 or positions.shape is None:
            continue
        turns = frequencies.numpy().astype(np.float64).reshape(-1)
        if len(positions.shape) == 3 and positions.shape[2] == 1 and turns.size == angles.shape[-1]:
            return positions, turns
    return None


def _tables(writer: Writer, before: ir.Node, angles: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the cosines and sines of `angles` in Q14: int32 [length, depth / 2]."""
    known = _factors(angles)
    assert known is not None
    positions, frequencies = known
    turns = np.rint(frequencies / (2 * math.pi) * 2.0**TURN).astype(np.int64)
    name, step = f"{angles.name}_turns", 2 ** (TURN - STEPS)
    value = writer.node(before, "Squeeze", [positions, writer.constant(np.array([0]), f"{name}.axis")], name).outputs[0]
    for op_type, array in (
        ("Mul", turns),
        ("Add", np.array(step // 2)),
        ("Div", np.array(step)),
        ("Mod", np.array(2**STEPS)),
    ):
        other = writer.constant(array, f"{name}.{op_type}")
        value = writer.node(before, op_type, [value, other], f"{name}_{op_type}").outputs[0]
        value.dtype = ir.DataType.INT64
    circle = np.arange(2**STEPS) * (2 * math.pi / 2**STEPS)
    found = []
    for curve in (np.cos, np.sin):
        table = writer.constant(np.rint(curve(circle) * UNIT[1]).astype(np.int32), f"{name}.{curve.__name__}")
        row = writer.node(before, "Gather", [table, value], f"{name}_{curve.__name__}").outputs[0]
        row.dtype = ir.DataType.INT32
        row.shape = None if angles.shape is None else ir.Shape(angles.shape[1:])
        found.append(row)
    return found[0], found[1]
