"""One weight as lookup tables and a sparse matrix: the tasks that the passes divide their work into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from intaglio.executors.executor import Executor
from intaglio.graph_passes.lookup_tables.compensation import Compensation
from intaglio.graph_passes.lookup_tables.sparse import Places, Sparse, gather, select_sparse
from intaglio.graph_passes.lookup_tables.tables import Table, TableBits, fit
from intaglio.graph_passes.weights.row_blocks import row_blocks
from intaglio.processes.threads import in_parallel

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Method:
    """How to store a layer: bits of the indices, grid of the tables, and the fractions stored as a sparse matrix."""

    bits: int
    table_bits: TableBits = "auto"
    sensitive: float = 0.0
    outliers: float = 0.0


@dataclass(frozen=True)
class Compressed:
    """A layer's weight as a table and optionally a sparse matrix that is added to it.

    `error`: Σ sensitivity·difference², or that of `compensated_rows` if inputs are known.
    """

    table: Table
    bits: int
    sparse: Sparse | None
    error: float

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All of it as named arrays, the input of `of`."""
        table = self.table
        numbers = {"bits": self.bits, "error": self.error, "table_error": table.error, "grid": table.grid}
        sparse = {} if self.sparse is None else vars(self.sparse)
        return {"indices": table.indices, "lut": table.lut, **sparse, **{k: np.array(v) for k, v in numbers.items()}}

    @classmethod
    def of(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return what `arrays` was called of."""
        table = Table(arrays["indices"], arrays["lut"], float(arrays["table_error"]), int(arrays["grid"]))
        sparse = None
        if "values" in arrays:
            sparse = Sparse(arrays["values"], arrays["columns"], arrays["row_offsets"])
        return cls(table, int(arrays["bits"]), sparse, float(arrays["error"]))

    @property
    def nbytes(self) -> int:
        """The bytes of all of its arrays."""
        sparse = 0 if self.sparse is None else self.sparse.nbytes
        return self.table.indices.size * self.bits // 8 + self.table.lut.nbytes + sparse

    def weight(self, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """The weight [N, K] that it represents."""
        weight = np.empty(self.table.indices.shape, dtype)

        def fill(part: slice) -> None:
            weight[part] = self.rows(part)

        in_parallel(fill, row_blocks(weight))
        return weight

    def rows(self, part: slice) -> Floats:
        """Return some rows of it."""
        weight: Floats = np.take_along_axis(self.table.lut[part], self.table.indices[part].astype(np.intp), axis=1)
        if self.sparse is not None:
            offsets = self.sparse.row_offsets[part.start : part.stop + 1]
            within = slice(offsets[0], offsets[-1])
            rows = np.repeat(np.arange(len(weight)), np.diff(offsets))
            weight[rows, self.sparse.columns[within]] += self.sparse.values[within]
        return weight


@dataclass(frozen=True)
class Fitted:
    """The tables of a weight before its indices are chosen: see `Table`.

    places: [nnz] of the sparse weights; sensitivities: [N], the sum of each row.
    """

    lut: Floats
    grid: int
    places: Places
    sensitivities: Doubles


def compressed(matrix: Floats, sensitivities: Floats, method: Method) -> Compressed:
    """Store the weight [N, K] by `method`, each weight as the nearest centroid.

    Weights in the sparse matrix are ignored in the clustering; their index selects the centroid nearest to 0, and
    the sparse matrix contains the difference to it, so that the sum is the weight.
    """
    table, places = _fitted(matrix, sensitivities, method)
    return _stored(table, places, matrix.reshape(-1)[places], method)


def _fitted(matrix: Floats, sensitivities: Floats, method: Method) -> tuple[Table, Places]:
    """Return the table of a weight, and the places [nnz] of the weights for the sparse matrix."""
    places = select_sparse(matrix, sensitivities, method.sensitive, method.outliers)
    weights = np.require(sensitivities, requirements="W")  # a copy only of what another process shares
    flat = weights.reshape(-1)
    apart = flat[places]
    flat[places] = 0
    table = fit(matrix, weights, method.bits, method.table_bits)
    flat[places] = apart
    return table, places


def _stored(table: Table, places: Places, exact: Floats, method: Method) -> Compressed:
    """Complete `table`, whose indices are changed at `places` [nnz], by the sparse matrix of the `exact` [nnz] numbers.

    Without sparse weights the result has no sparse matrix.
    """
    sparse = None
    if method.sensitive or method.outliers:
        rows = places // table.indices.shape[1]
        nearest = nearest_zero(table.lut)[rows]
        table.indices.reshape(-1)[places] = nearest
        sparse = gather(exact - table.lut[rows, nearest], places, table.indices.shape)
    return Compressed(table, method.bits, sparse, table.error)


def fitted_lut(matrix: Floats, sensitivities: Floats, method: Method) -> Fitted:
    """Fit the tables of a weight, for `compensated`."""
    table, places = _fitted(matrix, sensitivities, method)
    return Fitted(table.lut, table.grid, places, sensitivities.sum(axis=1, dtype=np.float64))


def compensated(executor: Executor, compensation: Any, matrix: Floats, fitted: Fitted, method: Method) -> Compressed:
    """Store the weight [N, K] with indices chosen by `compensation`, which `executor` shares."""
    parts = list(row_blocks(matrix))
    places, columns = fitted.places, matrix.shape[1]
    bounds = [np.searchsorted(places, (part.start * columns, part.stop * columns)) for part in parts]
    tasks = (
        (compensation, matrix[part], fitted.sensitivities[part], fitted.lut[part], places[a:b] - part.start * columns)
        for part, (a, b) in zip(parts, bounds, strict=True)
    )
    indices, exact = np.empty(matrix.shape, np.uint8), np.empty(len(places), np.float32)
    error = 0.0
    results = executor.map(compensated_rows, tasks, small=True)
    for part, (a, b), (chosen, numbers, cost) in zip(parts, bounds, results, strict=True):
        indices[part], exact[a:b] = chosen, numbers
        error += cost
    return _stored(Table(indices, fitted.lut, error, fitted.grid), places, exact, method)


def compensated_rows(
    compensation: Compensation, matrix: Floats, sensitivities: Doubles, lut: Floats, places: Places
) -> tuple[npt.NDArray[np.uint8], Floats, float]:
    """Return the indices of some rows, the exact numbers at `places`, and the cost of the differences d from `matrix`.

    The cost is Σ over rows n of F[n]·d[n]·H·d[n]ᵀ / tr(H) with `sensitivities` F [N]. It is the quadratic form of the
    Fisher information if the gradient's factors by output and by input are independent, with H instead of its diagonal.
    """
    indices, exact, changes = compensation.assign(matrix, lut, places)
    return indices, exact, float(changes @ sensitivities)


def nearest_zero(lut: Floats) -> npt.NDArray[np.uint8]:
    """Return the index of the centroid nearest to 0 in each row of `lut`: [N]."""
    index: npt.NDArray[np.uint8] = np.abs(lut).argmin(axis=1).astype(np.uint8)
    return index
