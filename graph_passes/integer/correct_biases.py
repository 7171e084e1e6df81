"""CorrectBiases: subtract the mean error of integer linear layers, measured on real text, from their biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.effect import Effect
from intaglio.graph_passes.calibrate import observe
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.graphs import constant
from intaglio.graph_passes.integer.quantized import Writer
from intaglio.graph_passes.observing import ObservingPass
from intaglio.progress import track

KEY = "float_means"  # in `ir.Node.meta` of an IntLinear
LIMIT = 2**30  # maximum magnitude of a bias


@dataclass(frozen=True)
class FloatMeans:
    """The floating-point mean that an IntLinear must match."""

    mean: npt.NDArray[np.float64]  # [N], of the floating-point layer over the calibration's tokens, bias included
    unit: npt.NDArray[np.float64]  # [N], the real value of one unit of the accumulator


@dataclass(frozen=True)
class CorrectBiases(ObservingPass):
    """Shift the bias of every IntLinear so that the mean of each output channel is correct.

    Rounding, clipping and i-GELU have a small systematic error; its mean at a layer's output can be measured, and
    subtracted from the bias at no run-time cost. A layer's error depends on the preceding layers, so layers are
    corrected in order, each after those before it; `samples` texts are run for each.

    1. Corrected: IntLinear nodes that integer_linear made from calibrated layers in the same recipe.
    2. Left: nodes whose floating-point means are unknown, or whose bias is shared.
    """

    name: ClassVar[str] = "correct_biases"
    effect: ClassVar[Effect] = Effect.INT8

    def rewrite(self, model: ir.Model, inputs: PassInputs) -> tuple[ir.Model, Counts]:
        """Rewrite `model`, observing it on the calibration data."""
        counts = Counts()
        nodes = [node for node in model.graph if node.op_type == "IntLinear" and _correctable(node, counts)]
        if not nodes:
            return model, counts
        batches, _ = inputs.calibration.load(self.samples, self.batch)
        levels = _levels(nodes)
        for layers in track(levels, self.name, total=len(levels)):
            probes = _probes(model, layers)
            try:
                seen = observe(model, [probe.outputs[0] for probe in probes], batches)
            finally:
                model.graph.remove(probes, safe=True)
            for node, statistics in zip(layers, seen, strict=True):
                assert statistics.channel_mean is not None
                _shift(node, statistics.channel_mean)
        counts.add("linear", len(nodes))
        return model, counts


def _correctable(node: ir.Node, counts: Counts) -> bool:
    bias = node.inputs[2]
    if KEY not in node.meta:
        counts.leave(f"{node.name}: its floating-point means are not known")
    elif bias is None or constant(bias) is None or len(bias.uses()) != 1:
        counts.leave(f"{node.name}: its bias is shared, or not a constant")
    else:
        return True
    return False


def _levels(nodes: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """Group the nodes by input, in the graph's order; nodes of a group do not depend on each other."""
    levels: dict[ir.Value | None, list[ir.Node]] = {}
    for node in nodes:
        levels.setdefault(node.inputs[0], []).append(node)
    return list(levels.values())


def _probes(model: ir.Model, nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Add, for each node, a parallel node that returns its accumulator."""
    writer = Writer(model)
    return [writer.integer(node, "IntLinear", node.inputs[:3], node.outputs[0], bits=32) for node in nodes]


def _shift(node: ir.Node, accumulator: npt.NDArray[np.float64]) -> None:
    """Shift the mean of the accumulator to that of the floating-point layer."""
    known: FloatMeans = node.meta[KEY]
    bias = node.inputs[2]
    assert bias is not None and bias.const_value is not None
    missing = known.mean / known.unit - accumulator
    shifted = np.clip(bias.const_value.numpy() + np.rint(missing), -LIMIT, LIMIT).astype(np.int32)
    bias.const_value = ir.tensor(shifted, name=bias.name)
