"""IntegerMultiply: replace products of two activations, element by element, by integer products and Requantize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.integer.emit import emit
from intaglio.graph_passes.quantize_dequantize.quantized import Quantized, Writer, quantized, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region


@dataclass(frozen=True)
class IntegerMultiply(Pass):
    """Mul(DQ(x), DQ(y)) → Q, as in a gated feed-forward layer, becomes Mul of int32 and Requantize.

    1. x and y have one scale or one per channel, and up to 16 bits each: their product is exact in 32.
    2. Left, with the reason: inputs or outputs that are not in Q/DQ form.
    """

    name: ClassVar[str] = "integer_multiply"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        region = model_region(model)
        made = {value for node in region for value in node.outputs}
        for node in region:
            if node.op_type != "Mul" or node.domain != "" or node.graph is None:
                continue
            factors = [quantized(value) for value in node.inputs]
            if factors == [None, None]:  # a factor per channel, which is part of the following scale
                continue
            if factors[0] is None or factors[1] is None or not made.issuperset(node.inputs):
                counts.leave(f"{node.outputs[0].name}: not both of its inputs are integers of the encoder")
            else:
                counts.note("multiply", _replace(writer, node, factors[0], factors[1]))


def _replace(writer: Writer, node: ir.Node, x: Quantized, y: Quantized) -> str | None:
    """Insert the product, or return the reason why not."""
    result = node.outputs[0]
    consumers = quantizers(result)
    if isinstance(consumers, str):
        return consumers
    inputs = [writer.int32(each.integers, node) for each in (x, y)]
    product = writer.node(node, "Mul", inputs, f"{result.name}_int32").outputs[0]
    product.dtype, product.shape = ir.DataType.INT32, result.shape
    emit(writer, node, "Requantize", [product], result, x.scale * y.scale, consumers)
    return None
