"""IntegerLayerNorm: replace LayerNormalization over the last axis by IntLayerNorm."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant, rank
from intaglio.graph_passes.integer.emit import share
from intaglio.graph_passes.quantize_dequantize.quantized import SHORT, Quantizer, Writer, give, quantized, quantizers
from intaglio.graph_passes.quantize_dequantize.region import model_region

WEIGHT_BITS = 15  # so that a normalised 16-bit value times a weight fits in 32 bits
BIAS_BITS = 24


@dataclass(frozen=True)
class IntegerLayerNorm(Pass):
    """DQ → LayerNormalization → Qs becomes one IntLayerNorm, with an 8-bit and a 16-bit output.

    1. The input has one scale; weight and bias are constants of one axis (a missing bias is 0).
    2. One 8-bit user and one 16-bit user are served by the operator itself, each at its own scale or, for 8 bits, with
       a scale per channel; further users get the 16-bit output requantised.
    3. Left, with the reason: normalisation over another axis, inputs or outputs that are not in Q/DQ form.
    """

    name: ClassVar[str] = "integer_layer_norm"
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for node in model_region(model):
            if node.op_type != "LayerNormalization" or node.domain != "" or node.graph is None:
                continue
            counts.note("layer_norm", _replace(writer, node))


def _replace(writer: Writer, node: ir.Node) -> str | None:
    """Insert the IntLayerNorm, or return the reason why not."""
    result = node.outputs[0]
    x, consumers = quantized(node.inputs[0]), quantizers(result)
    weight, bias = constant(node.inputs[1]), constant(node.inputs[2]) if len(node.inputs) > 2 else None
    axis, axes = node.attributes.get_int("axis", -1), rank(result)
    if axis != -1 and (axes is None or axis != axes - 1):
        return f"{result.name}: normalises over axis {axis}, expected the last one"
    if x is None or x.per_tensor is None:
        return f"{result.name}: its input is not integers with one scale"
    if isinstance(consumers, str):
        return consumers
    if weight is None or len(weight.shape) != 1 or any(len(output.uses()) for output in node.outputs[1:]):
        return f"{result.name}: its weight is not a constant, or its mean is used"
    narrow = next((consumer for consumer in consumers if consumer.bits == 8), None)
    wide = next((consumer for consumer in consumers if consumer.bits == 16), None)
    real_weight = weight.numpy().astype(np.float64)
    real_bias = np.zeros_like(real_weight) if bias is None else bias.numpy().astype(np.float64)
    wide_scale = np.float32(narrow.scale.max() / 256 if wide is None and narrow is not None else _one(wide))
    narrow_scale = np.asarray(wide_scale * 256) if narrow is None else narrow.scale
    out_scale = np.float32(narrow_scale.max())
    weights, weight_scale = _fixed_point(real_weight, WEIGHT_BITS, float(wide_scale))
    biases, bias_scale = _fixed_point(real_bias, BIAS_BITS, 1.0)
    inputs: list[ir.Value | None] = [
        writer.int32(x.integers, node),
        writer.constant(weights, f"{result.name}.weight_int32"),
        writer.constant(biases, f"{result.name}.bias_int32"),
        *writer.dyadics(wide_scale / narrow_scale, f"{result.name}.requantize", SHORT),
    ]
    made = writer.integer(
        node,
        "IntLayerNorm",
        inputs,
        result,
        scale=x.per_tensor,
        weight_scale=weight_scale,
        bias_scale=bias_scale,
        out_scale=float(out_scale),
        wide_scale=float(wide_scale),
        epsilon=node.attributes.get_float("epsilon", 1e-5),
    )
    if narrow is not None:
        give(made.outputs[0], [narrow])
    others = [consumer for consumer in consumers if consumer is not narrow]
    if others:
        own = Quantizer(node, np.asarray(wide_scale, np.float64), 16)
        share(writer, node, made.outputs[1], own, others, result)
    return None


def _one(consumer: Quantizer | None) -> float:
    """Return the largest scale of a 16-bit user."""
    assert consumer is not None
    return float(consumer.scale.max())


def _fixed_point(real: npt.NDArray[np.float64], bits: int, unit: float) -> tuple[npt.NDArray[np.int32], float]:
    """Return integers below 2^bits and their scale, which is `unit` times a power of two.

    With weights at such a scale, the 16-bit output needs only a shift, not a second product.
    """
    largest = float(np.abs(real).max(initial=0)) or 1.0
    _, exponent = math.frexp(largest / (unit * (2**bits - 1)))
    scale = math.ldexp(unit, exponent)
    return np.rint(real / scale).astype(np.int32), scale
