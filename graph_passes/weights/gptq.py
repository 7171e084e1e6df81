"""Gptq: quantise weights in uniform groups, rounded so that the layers' outputs change least."""

from __future__ import annotations

from collections.abc import Iterable
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
from intaglio.graph_passes.weights.gptq_solver import Solver
from intaglio.graph_passes.weights.group_layers import (
    count,
    emit,
    grouped_layers,
    own_weights,
    set_weight,
)
from intaglio.graph_passes.weights.linear_layers import LayerWriter, LinearLayer
from intaglio.graph_passes.weights.options import GroupPass
from intaglio.graph_passes.weights.uniform import Codes, Floats, Grid
from intaglio.processes.threads import in_parallel

COLUMNS = 256  # of a block of second moments


@dataclass(frozen=True)
class Gptq(GroupPass, ObservingPass):
    """x·Wᵀ becomes GroupMatMul, W in `bits` bits with a scale for each group of a row's weights.

    The grids come from rtn; GPTQ (`gptq_solver`) chooses the grid point of each weight from the layer's inputs on
    calibration text, with the preceding layers rounded already. With `act_order` the columns are rounded in the order
    of their inputs' magnitudes; that costs nothing at run time, as the groups do not change.

    1. Layers are processed in the order of the graph, those that share an input together.
    2. Left: layers that match a pattern of `skip`, those whose rows are not a multiple of 32, heads tied to
       the embeddings unless `tied`, and layers that share their weight.

    `damping`: of the Hessian, as a fraction of the mean of its diagonal. Raises `GraphError` for weights or activations
    that are NaN or infinite, `UsageError` for too little text.
    """

    name: ClassVar[str] = "gptq"
    act_order: bool = True
    damping: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.damping <= 1:
            raise GraphError(f"gptq: damping {self.damping}: expected more than 0, at most 1.")

    def rewrite(self, model: ir.Model, inputs: PassInputs) -> tuple[ir.Model, Counts]:
        """Rewrite `model`, observing it on the calibration data."""
        counts = Counts()
        layers = own_weights(grouped_layers(model, counts, self.skip, self.group_size, self.tied), counts)
        if not layers:
            return model, counts
        batches, model.meta[RECORD] = load_batches(self.name, inputs.calibration, self.samples, self.batch, counts)
        writer = LayerWriter(model)
        rounded: list[tuple[LinearLayer, Codes, Grid]] = []
        with Stream(model, batches) as stream:
            levels = stream.levels(layers)
            for level in track(levels, self.name, total=len(levels)):
                hessian = second_moments(stream.rows(level[0].x), level[0].shape[1])
                solver = Solver(hessian, self.damping, self.act_order)
                del hessian
                self._emit(writer, [each for each in rounded if stream.has_run(each[0].node)])
                rounded = [each for each in rounded if not stream.has_run(each[0].node)]
                rounded += [self._round(layer, solver, counts) for layer in level]
        self._emit(writer, rounded)
        return model, counts

    def _round(self, layer: LinearLayer, solver: Solver, counts: Counts) -> tuple[LinearLayer, Codes, Grid]:
        """Return the layer's codes; its weight becomes their values, unless it is an embedding table too."""
        matrix = layer.matrix()
        grid = self.grid(matrix)
        codes = solver.round(matrix, grid)
        count(counts, layer, matrix, codes, grid)
        if not layer.tied:
            set_weight(layer, grid.decode(codes))
        return layer, codes, grid

    def _emit(self, writer: LayerWriter, rounded: Iterable[tuple[LinearLayer, Codes, Grid]]) -> None:
        for layer, codes, grid in rounded:
            emit(writer, [layer], codes, grid, self.activation_bits)


def second_moments(rows: Iterable[Floats], channels: int) -> Floats:
    """Return the sum of xᵀ·x over rows [channels]: [channels, channels], GPTQ's Hessian up to a factor."""
    sums = np.zeros((channels, channels), np.float32)
    starts = range(0, channels, COLUMNS)
    for part in rows:

        def add(start: int, part: Floats = part) -> None:  # the matrix is symmetric: what lies below is copied
            block = slice(start, start + COLUMNS)
            sums[block, start:] += part[:, block].T @ part[:, start:]

        in_parallel(add, starts)
    for start in starts:
        block = slice(start, start + COLUMNS)
        sums[start + COLUMNS :, block] = sums[block, start + COLUMNS :].T
        sums[block, block] = np.triu(sums[block, block]) + np.triu(sums[block, block], 1).T  # BLAS may round both apart
    return sums
