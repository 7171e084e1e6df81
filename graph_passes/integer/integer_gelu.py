"""IntegerGelu: replace GELUs that were not fused into an IntLinear by IntGelu."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.integer.emit import emit_gelu, share
from intaglio.graph_passes.quantize_dequantize.quantized import SHORT, Quantizer, Writer, quantized, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region
from intaglio.plugins.integer_math import gelu_inner_scale, gelu_out_scale


@dataclass(frozen=True)
class IntegerGelu(Pass):
    """DQ → Gelu → Q becomes IntGelu, for both forms of Gelu, as i-GELU approximates both equally well.

    1. The input has one scale and 8 or 16 bits.
    2. An output used at several scales is computed at the coarsest, then requantised.
    3. Left, with the reason: inputs or outputs that are not in Q/DQ form.
    """

    name: ClassVar[str] = "integer_gelu"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in model_region(model):
            if node.op_type != "Gelu" or node.domain != "" or node.graph is None:
                continue
            x, consumers = quantized(node.inputs[0]), quantizers(node.outputs[0], zero_points=True)
            if x is None or x.per_tensor is None:
                counts.leave(f"{node.outputs[0].name}: its input is not integers with one scale")
            elif isinstance(consumers, str):
                counts.leave(consumers)
            elif len(consumers) > 1 and any(consumer.zero_point for consumer in consumers):
                counts.leave(f"{node.outputs[0].name}: it is used at several scales, one with a zero point")
            else:
                _replace(writer, node, writer.int32(x.integers, node), x.per_tensor, consumers)
                counts.add("gelu")


def _replace(writer: Writer, node: ir.Node, x: ir.Value, scale: float, consumers: list[Quantizer]) -> None:
    if len(consumers) == 1 and consumers[0].bits == 8:
        emit_gelu(writer, node, "IntGelu", [x], consumers[0], scale=scale)
        return
    largest = np.asarray(max(consumer.scale.max() * 2.0 ** (consumer.bits - 8) for consumer in consumers), np.float64)
    out_scale = gelu_out_scale(float(largest))
    factors = writer.dyadics(gelu_inner_scale(out_scale) / largest, f"{node.outputs[0].name}.requantize", SHORT)
    integer = writer.integer(node, "IntGelu", [x, *factors], node.outputs[0], scale=scale, out_scale=out_scale)
    share(writer, node, integer.outputs[0], Quantizer(node, largest, 8), consumers, node.outputs[0])
