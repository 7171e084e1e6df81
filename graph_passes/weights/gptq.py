"""Gptq: quantise weights in uniform groups, rounded so that the layers' outputs change least."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
from intaglio.graph_passes.weights.row_blocks import row_blocks
from intaglio.graph_passes.weights.uniform import Codes, Floats, Grid


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
    uses_executor: ClassVar[bool] = True
    keeps_layers: ClassVar[bool] = True
    batch: int = 4  # chunks of hundreds of tokens: larger batches are not faster, and harder to divide among workers
    act_order: bool = True
    damping: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.damping <= 1:
            raise GraphError(f"gptq: damping {self.damping}: expected more than 0, at most 1.")

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        """Rewrite `model`, observing it on the calibration data."""
        layers = own_weights(grouped_layers(model, counts, self.skip, self.group_size, self.tied), counts)
        if not layers:
            return
        batches, model.meta[RECORD] = load_batches(self.name, inputs.calibration, self.samples, self.batch, counts)
        writer = LayerWriter(model)
        rounded: list[tuple[LinearLayer, Codes, Grid]] = []
        with Stream(model, batches, inputs.executor) as stream:
            levels = stream.levels(layers)
            for level in track(levels, self.name, total=len(levels)):
                codes = self._codes(level, stream, inputs)
                self._emit(writer, [each for each in rounded if stream.has_run(each[0].node)])
                rounded = [each for each in rounded if not stream.has_run(each[0].node)]
                rounded += [self._rounded(layer, each, counts) for layer, each in zip(level, codes, strict=True)]
        self._emit(writer, rounded)

    def _codes(self, level: Sequence[LinearLayer], stream: Stream, inputs: PassInputs) -> list[Codes]:
        """Return the codes of the layers of a level: those of a run that ended early, or of GPTQ."""
        if all(layer.name in inputs.finished for layer in level):
            stream.advance(level[0].x)
            return [inputs.finished.read(layer.name)["codes"] for layer in level]
        hessian = stream.second_moments(level[0].x, level[0].shape[1])
        solver = inputs.executor.share(Solver(hessian, self.damping, self.act_order))
        del hessian
        # with workers, the layers of a level are rounded together
        started = [inputs.executor.map(Solver.round, self._blocks(layer, solver), small=True) for layer in level]
        codes = [np.concatenate(list(parts)) for parts in started]
        for layer, each in zip(level, codes, strict=True):
            inputs.finished.put(layer.name, codes=each)
        return codes

    def _blocks(self, layer: LinearLayer, solver: Any) -> Iterator[tuple[Any, Floats, Grid]]:
        """Yield the tasks for a layer, each for a block of its rows."""
        matrix = layer.matrix()
        for part in row_blocks(matrix):
            yield solver, matrix[part], self.grid(matrix[part])

    def _rounded(self, layer: LinearLayer, codes: Codes, counts: Counts) -> tuple[LinearLayer, Codes, Grid]:
        """Return the layer's codes and grid; its weight becomes their values, unless it is an embedding table."""
        matrix = layer.matrix()
        grid = self.grid(matrix)
        values = grid.decode(codes)
        count(counts, layer, matrix, values, grid)
        if not layer.tied:
            set_weight(layer, values)
        return layer, codes, grid

    def _emit(self, writer: LayerWriter, rounded: Iterable[tuple[LinearLayer, Codes, Grid]]) -> None:
        for layer, codes, grid in rounded:
            emit(writer, [layer], codes, grid, self.activation_bits)
