"""Replace a float operator by one of our operators, for all QuantizeLinear nodes that use its output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.graph_passes.quantize_dequantize.quantized import SHORT, Quantizer, Scale, Writer, give
from intaglio.plugins.integer_math import gelu_inner_scale, gelu_out_scale


def emit(
    writer: Writer,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    like: ir.Value,
    scale: Scale,
    consumers: Sequence[Quantizer],
    **attributes: Any,
) -> ir.Node:
    """Emit an operator whose integers at `scale` (one, or one per channel) are requantised for its users.

    `inputs` are those before `multiplier` and `shift`. With several users it outputs 16 bits, which a Requantize per
    user converts.
    """
    consumers = sorted(consumers, key=lambda consumer: consumer.bits, reverse=True)
    first = consumers[0]
    factors = writer.dyadics(scale / first.scale, f"{like.name}.requantize")
    node = writer.integer(before, op_type, [*inputs, *factors], like, bits=first.bits, **attributes)
    share(writer, before, node.outputs[0], first, consumers, like)
    return node


def share(
    writer: Writer,
    before: ir.Node,
    integers: ir.Value,
    made_for: Quantizer,
    consumers: Sequence[Quantizer],
    like: ir.Value,
) -> None:
    """Connect `integers`, at the scale of `made_for`, to all users: directly, or requantised."""
    for consumer in consumers:
        if consumer.bits == made_for.bits and np.array_equal(consumer.scale, made_for.scale):
            give(integers, [consumer])
        else:
            factors = writer.dyadics(made_for.scale / consumer.scale, f"{like.name}.requantize")
            wide = writer.int32(integers, before)
            other = writer.integer(before, "Requantize", [wide, *factors], like, bits=consumer.bits)
            give(other.outputs[0], [consumer])


def emit_gelu(
    writer: Writer,
    gelu: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    consumer: Quantizer,
    **attributes: Any,
) -> ir.Node:
    """Emit an operator that ends in i-GELU to 8 bits: with one scale, or with a factor per channel at the end."""
    out_scale = curve_scale(consumer)
    ratio = gelu_inner_scale(out_scale) / consumer.scale
    factors = writer.dyadics(ratio, f"{gelu.outputs[0].name}.requantize", SHORT)
    attributes |= {"out_scale": out_scale, "out_zero_point": consumer.zero_point}
    node = writer.integer(gelu, op_type, [*inputs, *factors], gelu.outputs[0], **attributes)
    give(node.outputs[0], [consumer])
    return node


def curve_scale(consumer: Quantizer) -> float:
    """The out_scale of a GELU for this user: 8 bits around 0 reach at it what the user's reach above its zero point."""
    return gelu_out_scale(float(consumer.scale.max()) * (127 - consumer.zero_point) / 127)
