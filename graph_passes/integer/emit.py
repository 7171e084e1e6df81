"""Replace a float operator by one of our operators, for all QuantizeLinear nodes that use its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.graph_passes.integer.quantized import SHORT, Quantizer, Scale, Writer, give
from intaglio.plugins.integer_math import gelu_inner_scale


def emit(
    writer: Writer,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    like: ir.Value,
    scale: Scale,
    takers: Sequence[Quantizer],
    **attributes: Any,
) -> ir.Node:
    """Emit an operator whose integers at `scale` (one, or one per channel) are requantised for its users.

    `inputs` are those before `multiplier` and `shift`. With several users it outputs 16 bits, which a Requantize per
    user converts.
    """
    takers = sorted(takers, key=lambda taker: taker.bits, reverse=True)
    first = takers[0]
    factors = writer.dyadics(scale / first.scale, f"{like.name}.requantize")
    node = writer.integer(before, op_type, [*inputs, *factors], like, bits=first.bits, **attributes)
    share(writer, before, node.outputs[0], first, takers, like)
    return node


def share(
    writer: Writer,
    before: ir.Node,
    integers: ir.Value,
    made_for: Quantizer,
    takers: Sequence[Quantizer],
    like: ir.Value,
) -> None:
    """Connect `integers`, at the scale of `made_for`, to all users: directly, or requantised."""
    for taker in takers:
        if taker.bits == made_for.bits and np.array_equal(taker.scale, made_for.scale):
            give(integers, [taker])
        else:
            factors = writer.dyadics(made_for.scale / taker.scale, f"{like.name}.requantize")
            wide = writer.int32(integers, before)
            other = writer.integer(before, "Requantize", [wide, *factors], like, bits=taker.bits)
            give(other.outputs[0], [taker])


def emit_gelu(
    writer: Writer, gelu: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], taker: Quantizer, **attributes: Any
) -> ir.Node:
    """Emit an operator that ends in i-GELU to 8 bits: with one scale, or with a factor per channel at the end."""
    out_scale = float(np.float32(taker.scale.max()))
    ratio = gelu_inner_scale(out_scale) / taker.scale
    factors = writer.dyadics(ratio, f"{gelu.outputs[0].name}.requantize", SHORT)
    node = writer.integer(gelu, op_type, [*inputs, *factors], gelu.outputs[0], out_scale=out_scale, **attributes)
    give(node.outputs[0], [taker])
    return node
