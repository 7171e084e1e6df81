"""MergeRotary: replace the nodes of rotary position embeddings by RotaryEmbedding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.algebra import plain
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import infer_shapes, opset, rank, remove_if_dead
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.graph_passes.sections import section

OPSET = 23  # the first with RotaryEmbedding
HEADS = 4  # axes of queries and keys that are split into heads


@dataclass(frozen=True)
class Rotary:
    """x·cos + [-x₂, x₁]·sin, of queries or keys that were split into heads."""

    x: ir.Value  # [batch, length, heads·depth], before it was split
    heads: int
    layout: list[ir.Node]  # from x to the heads
    angles: ir.Value  # [1, length, depth / 2], of which the cosine and the sine are taken twice
    output: ir.Value


@dataclass(frozen=True)
class MergeRotary(Pass):
    """Rotary position embeddings as one node before the split into heads.

    1. x·[cos a, cos a] + [-x₂, x₁]·[sin a, sin a], with x₁ and x₂ the halves of each head of x, x being a Reshape
       into heads with or without a Transpose, becomes RotaryEmbedding of what is split. All sequences have the same
       angles a.
    2. Left, with the reason: other forms that begin with a cosine and a sine.
    """

    name: ClassVar[str] = "merge_rotary"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        if opset(model) < OPSET:
            counts.leave(f"opset {opset(model)}, RotaryEmbedding needs {OPSET}; run raise_opset first")
            return
        infer_shapes(model)
        writer = Writer(model)
        tables: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        curves = [node for node in model.graph if node.op_type in ("Cos", "Sin")]
        for node in list(model.graph):
            if node.op_type == "Add" and node.domain == "" and (found := _find(node)) is not None:
                _merge(writer, found, tables)
                counts.add("rotary embeddings")
        for node in curves:
            if node.graph is not None:
                counts.leave(f"{node.outputs[0].name}: is not part of a rotary embedding of halves of heads")


def _find(node: ir.Node) -> Rotary | None:
    """Return the rotary embedding that ends with this Add."""
    for (x, cosine), (turned, sine) in _products(node):
        angles = _angles(cosine, "Cos")
        if angles is None or angles is not _angles(sine, "Sin") or not _is_turned(plain(turned), plain(x)):
            continue
        layout: list[ir.Node] = []
        value = plain(x)
        while (producer := value.producer()) is not None and producer.op_type in ("Reshape", "Transpose"):
            layout.insert(0, producer)
            value = producer.inputs[0] or value
            if rank(value) == HEADS - 1:
                break
        split = layout[0].outputs[0].shape if layout else None
        heads = None if split is None or len(split) != HEADS else split[2]
        orders = [node.attributes.get_ints("perm") for node in layout[1:]]
        if rank(value) == HEADS - 1 and isinstance(heads, int) and orders in ([], [(0, 2, 1, 3)]):
            return Rotary(value, heads, layout, angles, node.outputs[0])
    return None


def _products(node: ir.Node) -> Iterator[tuple[tuple[ir.Value, ir.Value], ...]]:
    """Yield the factors of a sum of two products, in every order."""
    producers = [None if value is None else plain(value).producer() for value in node.inputs]
    pairs = [tuple(each.inputs) for each in producers if each is not None and each.op_type == "Mul"]
    if len(pairs) == 2:
        for terms in (pairs, pairs[::-1]):
            for orders in product((1, -1), repeat=2):
                first, second = (pair[::order] for pair, order in zip(terms, orders, strict=True))
                yield first, second  # type: ignore[misc]


def _angles(value: ir.Value, op_type: str) -> ir.Value | None:
    """Return the angles of which `value` holds the cosines or sines, twice."""
    node = plain(value).producer()
    while node is not None and node.op_type == "Unsqueeze" and node.inputs[0] is not None:
        node = plain(node.inputs[0]).producer()
    doubled = node.inputs[0] if node is not None and node.op_type == op_type else None
    halves = None if doubled is None else doubled.producer()
    if halves is None or halves.op_type != "Concat" or len(halves.inputs) != 2 or halves.inputs[0] is None:
        return None
    angles = halves.inputs[0]
    last = halves.attributes.get_int("axis", -1) in (-1, (rank(angles) or 0) - 1)
    one_row = angles.shape is not None and len(angles.shape) == HEADS - 1 and angles.shape[0] == 1
    return angles if last and one_row and halves.inputs[1] is angles else None


def _is_turned(turned: ir.Value, x: ir.Value) -> bool:
    """Whether `turned` is the halves of x, exchanged, the one that is then first with the other sign."""
    node = turned.producer()
    if node is None or node.op_type != "Concat" or len(node.inputs) != 2 or x.shape is None:
        return False
    negative, first = node.inputs
    minus = None if negative is None else negative.producer()
    if minus is None or minus.op_type != "Neg" or minus.inputs[0] is None or first is None:
        return False
    last, depth = len(x.shape) - 1, x.shape[-1]
    parts = [section(each) for each in (first, minus.inputs[0])]
    if not isinstance(depth, int) or node.attributes.get_int("axis", -1) not in (-1, last):
        return False
    expected = [(x, last, 0, depth // 2), (x, last, depth // 2, depth)]
    return [
        None if each is None else (plain(each.source), each.axis, each.start, each.stop) for each in parts
    ] == expected


def _merge(writer: Writer, found: Rotary, tables: dict[ir.Value, tuple[ir.Value, ir.Value]]) -> None:
    """Put the RotaryEmbedding and a copy of the layout in the place of `found`."""
    end = found.output.producer()
    assert end is not None
    if found.angles not in tables:
        tables[found.angles] = _table(writer, end, found, "Cos"), _table(writer, end, found, "Sin")
    inputs = [found.x, *tables[found.angles]]
    name = f"{found.output.name}_rotary"
    value = writer.node(end, "RotaryEmbedding", inputs, name, num_heads=found.heads).outputs[0]
    value.type, value.shape = found.x.type, found.x.shape
    for node in found.layout:
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        copy = writer.node(end, node.op_type, [value, *node.inputs[1:]], f"{name}_heads", **attributes)
        value = copy.outputs[0]
        value.type, value.shape = found.x.type, node.outputs[0].shape
    found.output.replace_all_uses_with(value)
    remove_if_dead(end)


def _table(writer: Writer, before: ir.Node, found: Rotary, op_type: str) -> ir.Value:
    """Return the cosines or sines of the angles, [batch, length, depth / 2], as RotaryEmbedding expects them."""
    name = f"{found.angles.name}_{op_type}"
    one = writer.node(before, op_type, [found.angles], name).outputs[0]
    batch = writer.node(before, "Shape", [found.x], f"{name}_batch", start=0, end=1).outputs[0]
    ones = writer.constant(np.array([1, 1]), f"{name}.ones")
    shape = writer.node(before, "Concat", [batch, ones], f"{name}_shape", axis=0).outputs[0]
    return writer.node(before, "Expand", [one, shape], f"{name}_rows").outputs[0]
