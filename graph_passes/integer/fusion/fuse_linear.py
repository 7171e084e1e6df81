"""FuseLinear: fuse the gate or the residual sum that follows an IntLinear into its epilogue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant, remove_if_dead
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.plugins import DOMAIN
from intaglio.plugins.int_linear.signature import SIGNATURE
from intaglio.plugins.nodes import lengths, take_over

NAMES = [each.name for each in SIGNATURE.inputs]
GATE, RESIDUAL = NAMES.index("gate"), NAMES.index("residual")


@dataclass(frozen=True)
class FuseLinear(Pass):
    """What follows an IntLinear becomes part of it, which is bit-identical and saves passes over the activations.

    1. IntLinear with an activation → Cast → Mul by a gate of 16 bits → Requantize, of a gated feed-forward layer.
    2. IntLinear with 16 bits → (Mul by a multiple of the unit) → Add to a residual stream of int32.
    3. Left, with the reason: gates and terms that have other users, or shapes of their own.
    """

    name: ClassVar[str] = "fuse_linear"
    effect: ClassVar[Effect] = Effect.EXACT

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in list(model.graph):
            if (node.domain, node.op_type) == (DOMAIN, "Requantize"):
                _fuse_gate(writer, node, counts)
            elif (node.domain, node.op_type) == ("", "Add") and node.outputs[0].dtype == ir.DataType.INT32:
                _fuse_residual(writer, node, counts)


def _fuse_gate(writer: Writer, node: ir.Node, counts: Counts) -> None:
    x, *factors = node.inputs
    product = _producer(x, "Mul")
    if product is None or node.attributes.get_int("bits", 8) != 8:
        return
    for activated, gate in (product.inputs, tuple(reversed(product.inputs))):
        cast = _producer(activated, "Cast")
        linear = None if cast is None else _linear(cast.inputs[0], bits=8)
        if linear is None or len([each for each in linear.inputs if each is not None]) != GATE:
            continue
        if not _used_once(x, activated, linear.outputs[0]):
            counts.leave(f"{node.outputs[0].name}: what is gated has other users")
        elif not _same_shape(linear.outputs[0], gate) or _linear(gate, bits=16) is None:
            counts.leave(f"{node.outputs[0].name}: its gate is not a linear layer's of 16 bits and of the same shape")
        else:
            _replace(writer, node, linear, [gate, *factors])
            counts.add("gate")
        return


def _fuse_residual(writer: Writer, node: ir.Node, counts: Counts) -> None:
    for term, residual in (node.inputs, tuple(reversed(node.inputs))):
        scaled = _producer(term, "Mul")
        multiple = None if scaled is None else constant(scaled.inputs[1])
        value = term if scaled is None or multiple is None else scaled.inputs[0]
        linear = _linear(value, bits=16)
        if linear is None:
            continue
        if not _used_once(term, value):
            counts.leave(f"{node.outputs[0].name}: a term has other users")
        elif not _same_shape(value, residual):
            counts.leave(f"{node.outputs[0].name}: its terms have different shapes")
        else:
            units = np.ones(1, np.int32) if multiple is None else multiple.numpy().reshape(-1)
            factor = writer.constant(units, f"{node.outputs[0].name}.multiple")
            _replace(writer, node, linear, [*[None] * (RESIDUAL - len(linear.inputs)), residual, factor])
            counts.add("residual")
        return


def _replace(writer: Writer, last: ir.Node, linear: ir.Node, added: list[ir.Value | None]) -> None:
    """Put IntLinear with more inputs in the place of `last`, of which it makes the output."""
    attributes = {name: each.value for name, each in linear.attributes.items()}
    made = writer.node(last, "IntLinear", [*linear.inputs, *added], f"{last.name}_IntLinear", DOMAIN, **attributes)
    take_over(last.outputs[0], made.outputs[0])
    remove_if_dead(last)


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and (node.domain, node.op_type) == ("", op_type) else None


def _linear(value: ir.Value | None, bits: int) -> ir.Node | None:
    """The IntLinear that makes `value`, with that many bits and nothing fused yet."""
    node = None if value is None else value.producer()
    if node is None or (node.domain, node.op_type) != (DOMAIN, "IntLinear") or len(node.inputs) > GATE:
        return None
    return node if node.attributes.get_int("bits", 8) == bits else None


def _used_once(*values: ir.Value | None) -> bool:
    return all(value is not None and len(value.uses()) == 1 and not value.is_graph_output() for value in values)


def _same_shape(a: ir.Value | None, b: ir.Value | None) -> bool:
    shapes = [None if each is None else lengths(each) for each in (a, b)]
    return shapes[0] is not None and shapes[0] == shapes[1] and None not in shapes[0]
