"""IntegerRequantize: insert Requantize where integers are used at another scale than they were computed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.quantize_dequantize.quantized import Quantizer, Scale, Writer, give, quantized, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region


@dataclass(frozen=True)
class IntegerRequantize(Pass):
    """DQ(x) → Q becomes Requantize(x), with a factor per channel if either scale has one.

    1. Every DequantizeLinear in the encoder that only QuantizeLinear nodes use.
    """

    name: ClassVar[str] = "integer_requantize"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in model_region(model):
            source = quantized(node.outputs[0])
            consumers = quantizers(node.outputs[0]) if source is not None else []
            if source is None or isinstance(consumers, str):
                continue
            for consumer in consumers:
                made = _requantize(writer, node, source.scale / consumer.scale, consumer)
                give(made, [consumer])
                counts.add("requantize")


def _requantize(writer: Writer, node: ir.Node, ratio: Scale, consumer: Quantizer) -> ir.Value:
    integers, like = node.inputs[0], node.outputs[0]
    assert integers is not None
    factors = writer.dyadics(ratio, f"{like.name}.requantize")
    inputs = [writer.int32(integers, node), *factors]
    return writer.integer(node, "Requantize", inputs, like, bits=consumer.bits).outputs[0]
