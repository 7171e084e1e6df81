"""Dense-and-sparse decomposition (SqueezeLLM, section 3.3): the weights that a table should not have to hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sparse:
    """S [N, K] in compressed sparse rows.

    values: [nnz] float32; columns: [nnz] int32, ascending in each row; row_offsets: [N + 1] int32.
    """

    values: Floats
    columns: npt.NDArray[np.int32]
    row_offsets: npt.NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """What the three arrays take."""
        return self.values.nbytes + self.columns.nbytes + self.row_offsets.nbytes


def set_aside(matrix: Floats, sensitivities: Floats, sensitive: float, outliers: float) -> npt.NDArray[np.int64]:
    """The places in the flattened `matrix` [N, K] of the weights that the sparse matrix is to hold, ascending.

    First the `sensitive` part of all weights, those with the largest sensitivities; then the `outliers` part, those of
    the others with the largest magnitudes. Both are whole numbers of weights, rounded to the nearest.
    """
    first = _largest(sensitivities.reshape(-1), round(sensitive * matrix.size))
    magnitudes = np.abs(matrix).reshape(-1)
    magnitudes[first] = -1
    second = _largest(magnitudes, min(round(outliers * matrix.size), matrix.size - first.size))
    return np.sort(np.concatenate([first, second]))


def gather(differences: Floats, places: npt.NDArray[np.int64], shape: tuple[int, int]) -> Sparse:
    """The sparse matrix of `shape` that holds `differences` [nnz] at `places` [nnz], ascending."""
    rows, columns = np.divmod(places, shape[1])
    offsets = np.searchsorted(rows, np.arange(shape[0] + 1))
    return Sparse(differences, columns.astype(np.int32), offsets.astype(np.int32))


def _largest(numbers: Floats, count: int) -> npt.NDArray[np.int64]:
    """The places of the `count` largest of `numbers`."""
    if count == 0:
        return np.empty(0, np.int64)
    return np.argpartition(numbers, numbers.size - count)[numbers.size - count :].astype(np.int64)
