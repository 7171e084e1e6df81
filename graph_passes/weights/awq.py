"""Awq: quantise weights in uniform groups, after scaling up those that are multiplied with large activations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from intaglio.display.progress import track
from intaglio.errors import GraphError
from intaglio.graph_passes.calibration.calibrate import RECORD
from intaglio.graph_passes.calibration.observing import ObservingPass
from intaglio.graph_passes.calibration.stream import Stream
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.weights.calibration_rows import load_batches
from intaglio.graph_passes.weights.fold import Fold, find_fold
from intaglio.graph_passes.weights.group_layers import count, emit, grouped_layers, own_weights
from intaglio.graph_passes.weights.linear_layers import LayerWriter, LinearLayer
from intaglio.graph_passes.weights.options import GroupPass
from intaglio.graph_passes.weights.uniform import Floats, squares
from intaglio.processes.threads import in_parallel

SAMPLE = 512  # tokens to measure errors on
ROWS = 1024  # outputs of a layer to measure errors on; the factors are the same for all outputs
SMALLEST = 1e-4  # minimum of a factor, as in the published code: for channels that are almost never used


@dataclass(frozen=True)
class Awq(GroupPass, ObservingPass):
    """x·Wᵀ = (x / s)·(W·s)ᵀ, with s for each input channel so that rounding W·s to groups loses least.

    Lin et al., "AWQ: Activation-aware Weight Quantization" (arXiv:2306.00978), section 3.2: s = mean|x|^a, with a of
    `steps` values from 0 (no scaling) to below 1, chosen by the output error of the layers that share x. W·s is then
    rounded as in rtn, with the same group sizes; x / s costs nothing, because 1 / s is folded into the producer of x
    (`fold`).

    1. Scaled: layers whose input is the output of a normalisation, a product or another linear layer without other
       uses. The others are rounded without scaling, and the reason is noted.
    2. Left: layers that match a pattern of `skip`, those whose rows are not a multiple of 32, heads tied to
       the embeddings unless `tied`, and layers that share their weight.

    Raises `GraphError` for weights or activations that are NaN or infinite, `UsageError` for too little text.
    """

    name: ClassVar[str] = "awq"
    uses_executor: ClassVar[bool] = True
    steps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 2:
            raise GraphError(f"awq: steps {self.steps}: expected at least 2.")

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        """Rewrite `model`, observing it on the calibration data."""
        usable = own_weights(grouped_layers(model, counts, self.skip, self.group_size, self.tied), counts)
        layers = {layer.node: layer for layer in usable}
        if not layers:
            return
        batches, model.meta[RECORD] = load_batches(self.name, inputs.calibration, self.samples, self.batch, counts)
        found: list[tuple[Fold, list[LinearLayer], Floats]] = []
        with Stream(model, batches, inputs.executor) as stream:
            levels = stream.levels(layers.values())
            for level in track(levels, f"{self.name}: factors", total=len(levels)):
                fold = find_fold(level[0].x, layers)
                if isinstance(fold, str):
                    names = ", ".join(layer.name for layer in level)
                    counts.leave(f"{names}: rounded without factors; its input: {fold}")
                    continue
                means, sample = _observe(stream.rows(level[0].x), len(batches))
                found.append((fold, level, self._search(level, means, sample)))
        columns: dict[ir.Node, Floats] = {}
        rows: dict[ir.Node, Floats] = {}
        for fold, level, factors in found:
            fold.apply(factors, rows)
            columns.update((layer.node, factors) for layer in level)
            counts.add("inputs scaled", int((factors != 1).any()))
        writer = LayerWriter(model)
        for node, layer in track(layers.items(), self.name, total=len(layers)):
            matrix = layer.matrix()
            if node in columns:
                matrix *= columns[node]
            if node in rows:
                matrix *= rows[node][:, None]
            grid = self.grid(matrix)
            codes = grid.encode(matrix)
            count(counts, layer, grid, squares(matrix, grid.decode(codes)))
            emit(writer, [layer], codes, grid, self.activation_bits)

    def _search(self, level: Sequence[LinearLayer], means: Floats, sample: Floats) -> Floats:
        """Return the factors [channels] with the least output error of the layers for `sample` [tokens, channels]."""
        candidates = [channel_factors(means, step / self.steps) for step in range(self.steps)]
        errors = np.zeros(len(candidates))
        for layer in level:
            matrix = layer.matrix()
            matrix = matrix[:: -(-len(matrix) // ROWS)]

            def error(factors: Floats, matrix: Floats = matrix) -> float:
                scaled = matrix * factors
                grid = self.grid(scaled)
                rounded = grid.decode(grid.encode(scaled)) / factors
                return float(np.square(sample @ (rounded - matrix).T).sum(dtype=np.float64))

            errors += in_parallel(error, candidates)
        return candidates[int(np.argmin(errors))]


def channel_factors(means: Floats, exponent: float) -> Floats:
    """Return mean|x|^exponent per channel, normalised so that the geometric mean of minimum and maximum is 1."""
    factors = np.maximum(means, np.float32(1e-30)) ** np.float32(exponent)
    factors = np.maximum(factors, np.float32(SMALLEST))
    return np.asarray(factors / np.sqrt(factors.max() * factors.min()), np.float32)


def _observe(batches: Iterable[Floats], number: int) -> tuple[Floats, Floats]:
    """Return mean|x| [channels] over all tokens, and about `SAMPLE` tokens [tokens, channels] from all batches."""
    total, sums, sample = 0, np.float32(0), []
    for rows in batches:
        total += len(rows)
        sums = sums + np.abs(rows).sum(axis=0)
        sample.append(rows[:: max(1, len(rows) * number // SAMPLE)])
    return np.asarray(sums / np.float32(total), np.float32), np.concatenate(sample)
