"""Gptq: quantise weights in uniform groups, rounded so that the layers' outputs change least."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.display.progress import track
from intaglio.errors import GraphError
from intaglio.graph_passes.calibration.calibrate import RECORD
from intaglio.graph_passes.calibration.observing import ObservingPass
from intaglio.graph_passes.calibration.stream import Stream
from intaglio.graph_passes.contract import Counts, PassInputs
from intaglio.graph_passes.weights.calibration_rows import load_batches
from intaglio.graph_passes.weights.gptq_solver import Solver, rounded_rows
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
        rounded: list[_Rounded] = []
        with Stream(model, batches, inputs.executor) as stream:

            def emit_those_that_ran() -> None:
                self._emit(writer, [each for each in rounded if stream.has_run(each.layer.node)])
                rounded[:] = [each for each in rounded if each.layer.node.graph is not None]

            levels = stream.levels(layers)
            for level in track(levels, self.name, total=len(levels)):
                for each in self._level(level, stream, inputs, meanwhile=emit_those_that_ran):
                    count(counts, each.layer, each.grid, each.squares)
                    if not each.layer.tied:
                        set_weight(each.layer, each.grid.decode(each.codes))
                    rounded.append(each)
        self._emit(writer, rounded)

    def _level(
        self, level: Sequence[LinearLayer], stream: Stream, inputs: PassInputs, meanwhile: Callable[[], None]
    ) -> list[_Rounded]:
        """Round the layers of a level, or read those of a run that ended early; `meanwhile` as of `second_moments`."""
        executor, finished = inputs.executor, inputs.finished
        if all(layer.name in finished for layer in level):
            stream.advance(level[0].x)
            meanwhile()
            return [_Rounded(layer, self.grid(layer.matrix()), **finished.read(layer.name)) for layer in level]
        hessian = stream.second_moments(level[0].x, level[0].shape[1], meanwhile)
        solver = executor.share(Solver(hessian, self.damping, self.act_order))
        del hessian
        grids = [self.grid(layer.matrix()) for layer in level]
        # with workers, the layers of a level are rounded together
        started = [
            executor.map(rounded_rows, _blocks(*each, solver), small=True) for each in zip(level, grids, strict=True)
        ]
        found = []
        for layer, grid, results in zip(level, grids, started, strict=True):
            codes, squares = zip(*results, strict=True)
            found.append(_Rounded(layer, grid, np.concatenate(codes), np.sum(squares, axis=0)))
            finished.put(layer.name, codes=found[-1].codes, squares=found[-1].squares)
        return found

    def _emit(self, writer: LayerWriter, rounded: Iterable[_Rounded]) -> None:
        for each in rounded:
            emit(writer, [each.layer], each.codes, each.grid, self.activation_bits)


@dataclass(frozen=True)
class _Rounded:
    """A layer, and its weight on a grid. `squares`: of the weight, see there."""

    layer: LinearLayer
    grid: Grid
    codes: Codes
    squares: npt.NDArray[np.float64]


def _blocks(layer: LinearLayer, grid: Grid, solver: Any) -> Iterator[tuple[Any, Floats, Grid]]:
    """Yield the tasks for a layer, each for a block of its rows."""
    matrix = layer.matrix()  # read again, as the weights of a level, such as all experts, may not fit into memory
    for rows in row_blocks(matrix):
        yield solver, matrix[rows], grid.of(rows)
