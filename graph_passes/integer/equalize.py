"""Equalize: move outliers of activations into the weights that they are multiplied with (as in SmoothQuant)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.calibration.activation_statistics import statistics_of
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.graphs import constant, remove_initializer_if_dead
from intaglio.graph_passes.quantize_dequantize.quantized import Writer
from intaglio.graph_passes.quantize_dequantize.region import model_region

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Equalize(Pass):
    """x·W = (x / s)·(s·W), with s per channel so that x / s has no channel much larger than the others.

    1. Every activation that the encoder's MatMuls multiply with constant weights [channels, outputs] gets one Mul
       before them; the weights take the factors in. s = max|x|^strength / max|W|^(1 - strength), over the channel.
    2. A channel that stays below the median of the channels' max|x| counts as if it reached it: most of those are
       features that the calibration texts do not have, and other texts would clip them to next to nothing.
    3. Left: activations without calibration, channels (s = 1) whose weights are all 0.

    The Mul costs nothing in integer form: the requantisation before it has one factor per channel anyway.
    """

    name: ClassVar[str] = "equalize"
    effect: ClassVar[Effect] = Effect.EXACT
    strength: float = 0.8
    after_gelu: float = 0.9  # strength after a GELU, where single channels are up to ten times larger than the others

    def __post_init__(self) -> None:
        for option in ("strength", "after_gelu"):
            if not 0 <= getattr(self, option) <= 1:
                raise GraphError(f"equalize: {option} {getattr(self, option)}: expected 0 to 1.")

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        writer = Writer(model)
        for activation, products in linear_inputs(model).items():
            seen = statistics_of(activation)
            if seen is None or seen.channel_absmax is None:
                counts.leave(f"{activation.name} was not calibrated")
                continue
            producer = activation.producer()
            strength = self.after_gelu if producer is not None and producer.op_type == "Gelu" else self.strength
            weights = [weight_of(node) for node in products]
            factors = _factors(seen.channel_absmax.astype(np.float64), weights, strength)
            _equalize(writer, activation, products, factors)
            counts.add("activations")


def _factors(activation: Floats, weights: list[npt.NDArray[np.float32]], strength: float) -> Floats:
    """Return s [channels]: max|x|^strength / max|W|^(1 - strength), max|x| at least the median."""
    weight = np.max([np.abs(each).max(axis=1) for each in weights], axis=0).astype(np.float64)
    reached = np.maximum(activation, np.median(activation))
    usable = (reached > 0) & (weight > 0)
    safe = np.where(usable, reached, 1.0), np.where(usable, weight, 1.0)
    factors: Floats = safe[0] ** strength / safe[1] ** (1 - strength)
    return np.where(usable, factors, 1.0)


def linear_inputs(model: ir.Model) -> dict[ir.Value, list[ir.Node]]:
    """Return the activations of the encoder that MatMuls multiply with constant weights, each with its MatMuls."""
    found: dict[ir.Value, list[ir.Node]] = {}
    for node in model_region(model):
        if node.op_type == "MatMul" and node.inputs[0] is not None and constant(node.inputs[0]) is None:
            weight = constant(node.inputs[1])
            if weight is not None and len(weight.shape) == 2:
                found.setdefault(node.inputs[0], []).append(node)
    return found


def weight_of(product: ir.Node) -> npt.NDArray[np.float32]:
    """Return the constant weight [channels, outputs] of a MatMul."""
    weight = constant(product.inputs[1])
    assert weight is not None
    return weight.numpy().astype(np.float32)


def _equalize(writer: Writer, activation: ir.Value, products: list[ir.Node], factors: Floats) -> None:
    inverse = writer.constant((1 / factors).astype(np.float32), f"{activation.name}.equalizer")
    first = products[0]
    scaled = writer.node(first, "Mul", [activation, inverse], f"{activation.name}_equalized").outputs[0]
    scaled.type, scaled.shape = activation.type, activation.shape
    for product in products:
        weight = product.inputs[1]
        assert weight is not None
        changed = (weight_of(product) * factors[:, None]).astype(np.float32)
        product.replace_input_with(0, scaled)
        product.replace_input_with(1, writer.constant(changed, f"{weight.name}_equalized"))
        remove_initializer_if_dead(weight)
