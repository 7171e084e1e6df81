"""Choose indices into tables by GPTQ: each error is compensated by the columns that are not assigned yet.

The nearest centroid is best for each weight alone. But the errors of a row add up in its output, depending on the
correlation of the layer's inputs, which the diagonal of the Fisher information ignores. GPTQ (arXiv:2210.17323) uses
the inputs' second moments H, and works with any set of values, so with tables too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from intaglio.graph_passes.lookup_tables.sparse import Places
from intaglio.graph_passes.weights.gptq_solver import Solver

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]


class Compensation:
    """Second moments of the inputs x of a layer: H = Σ xᵀ·x [K, K] over calibration text."""

    def __init__(self, hessian: Floats):
        self._solver = Solver(hessian)
        self._trace = max(float(np.trace(hessian, dtype=np.float64)), 1e-30)

    def assign(self, matrix: Floats, lut: Floats, places: Places) -> tuple[npt.NDArray[np.uint8], Floats, Doubles]:
        """Return indices [N, K] into the rows of `lut` [N, entries], ascending, that change x·Wᵀ little; exact numbers.

        Third result: the change of each row's output, d·H·dᵀ / tr(H) of its differences d from `matrix` [N].
        The exact numbers belong to the weights at `places` [nnz] of the flattened matrix, which need not be in the
        table: they compensate all errors before them. Their indices are meaningless. Rows are independent.
        """
        rows, columns = np.divmod(places, matrix.shape[1])
        by_column = np.argsort(columns, kind="stable")
        starts = np.searchsorted(columns[by_column], np.arange(matrix.shape[1] + 1))
        middles = (lut[:, 1:] + lut[:, :-1]) / 2
        indices = np.empty(matrix.shape[::-1], np.uint8)
        exact = np.empty(len(places), np.float32)
        every = np.arange(len(lut))

        def nearest(index: int, column: Floats) -> Floats:
            chosen = (column[:, None] > middles).sum(axis=1)
            indices[index] = chosen
            stored: Floats = lut[every, chosen]
            apart = by_column[starts[index] : starts[index + 1]]
            exact[apart] = stored[rows[apart]] = column[rows[apart]]
            return stored

        changes = self._solver.sweep(matrix, nearest)
        return np.ascontiguousarray(indices.T), exact, changes / self._trace
