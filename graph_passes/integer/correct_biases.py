"""CorrectBiases: subtract the mean error of integer linear layers, measured on real text, from their biases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.display.progress import track
from intaglio.graph_passes.calibration.observing import ObservingPass
from intaglio.graph_passes.calibration.stream import Floats, Stream
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.graphs import constant

KEY = "float_means"  # in `ir.Node.meta` of an IntLinear
LIMIT = 2**30  # maximum magnitude of a bias


@dataclass(frozen=True)
class FloatMeans:
    """The floating-point mean that an IntLinear must match."""

    mean: npt.NDArray[np.float64]  # [N], of the floating-point layer over the calibration's tokens, bias included
    unit: npt.NDArray[np.float64]  # [N], the real value of one unit of the accumulator


class IntegerLayer(NamedTuple):
    """An IntLinear that integer_linear made of a calibrated layer: x·weight + bias."""

    node: ir.Node
    x: ir.Value  # int8 [..., K]
    weight: ir.TensorProtocol  # int8 [K, N]
    bias: ir.Value  # int32 [N], its own


@dataclass(frozen=True)
class CorrectBiases(ObservingPass):
    """Shift the bias of every IntLinear so that the mean of each output channel is correct.

    Rounding, clipping and i-GELU have a small systematic error; its mean at a layer's output can be measured, and
    subtracted from the bias at no run-time cost. A layer's error depends on the preceding layers, so layers are
    corrected in order, each on the inputs that those before it give after their correction. As a sum of products is
    linear, the mean of the inputs is all that it takes.

    1. Corrected: IntLinear nodes that integer_linear made from calibrated layers in the same recipe.
    2. Left: nodes whose floating-point means are unknown, or whose bias is shared.
    """

    name: ClassVar[str] = "correct_biases"
    uses_executor: ClassVar[bool] = True
    effect: ClassVar[Effect] = Effect.INT8

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        """Rewrite `model`, observing it on the calibration data."""
        nodes = [node for node in model.graph if node.op_type == "IntLinear"]
        layers = [layer for layer in (_layer(node, counts) for node in nodes) if layer is not None]
        if not layers:
            return
        batches, _ = inputs.calibration.load(self.samples, self.batch)
        with Stream(model, batches, inputs.executor) as stream:
            levels = stream.levels(layers)
            for level in track(levels, self.name, total=len(levels)):
                mean = _mean(stream.rows(level[0].x))
                for layer in level:
                    _correct(layer, mean)
        counts.add("linear", len(layers))


def _layer(node: ir.Node, counts: Counts) -> IntegerLayer | None:
    x, weight, bias = node.inputs[:3]
    factors = constant(weight)
    if KEY not in node.meta or factors is None:
        counts.leave(f"{node.name}: its floating-point means are not known")
    elif bias is None or constant(bias) is None or len(bias.uses()) != 1:
        counts.leave(f"{node.name}: its bias is shared, or not a constant")
    else:
        assert x is not None
        return IntegerLayer(node, x, factors, bias)
    return None


def _mean(rows: Iterable[Floats]) -> npt.NDArray[np.float64]:
    """Return the mean of all rows: [channels]."""
    total, count = np.zeros(()), 0
    for part in rows:
        total = total + part.sum(axis=0, dtype=np.float64)
        count += len(part)
    return total / count


def _correct(layer: IntegerLayer, mean: npt.NDArray[np.float64]) -> None:
    """Set the bias with which the accumulator has the mean of the floating-point layer. `mean`: of the inputs."""
    known: FloatMeans = layer.node.meta[KEY]
    correct = np.rint(known.mean / known.unit - mean @ layer.weight.numpy().astype(np.float64))
    layer.bias.const_value = ir.tensor(np.clip(correct, -LIMIT, LIMIT).astype(np.int32), name=layer.bias.name)
