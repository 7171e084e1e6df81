"""Dense-and-sparse decomposition (SqueezeLLM, section 3.3): select the weights to store outside of the tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.graph_passes.weights.row_blocks import WEIGHTS

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


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
        """The bytes of the three arrays."""
        return self.values.nbytes + self.columns.nbytes + self.row_offsets.nbytes


def select_sparse(matrix: Floats, sensitivities: Floats, sensitive: float, outliers: float) -> Places:
    """Return the places in the flattened `matrix` [N, K] of the weights for the sparse matrix, ascending.

    First the `sensitive` fraction of all weights, those with the largest sensitivities; then the `outliers` fraction,
    those of the others with the largest magnitudes. Both numbers of weights are rounded to the nearest integer.
    """
    none = np.empty(0, np.int64)
    first = _largest(sensitivities.reshape(-1), round(sensitive * matrix.size), none)
    count = min(round(outliers * matrix.size), matrix.size - first.size)
    return np.sort(np.concatenate([first, _largest(matrix.reshape(-1), count, first)]))


def gather(differences: Floats, places: Places, shape: tuple[int, int]) -> Sparse:
    """Return the sparse matrix of `shape` with `differences` [nnz] at `places` [nnz], ascending."""
    rows, columns = np.divmod(places, shape[1])
    offsets = np.searchsorted(rows, np.arange(shape[0] + 1))
    return Sparse(differences, columns.astype(np.int32), offsets.astype(np.int32))


def _largest(numbers: Floats, count: int, taken: Places) -> Places:
    """Return the places of the `count` largest magnitudes not yet `taken`, ascending; the first of equals.

    The largest are found in each block of the numbers first, and then among these.
    """
    candidates = [np.empty(0, np.int64)]
    magnitudes = [np.empty(0, np.float32)]
    for start in range(0, numbers.size if count else 0, WEIGHTS):
        part = np.abs(numbers[start : start + WEIGHTS])
        part[taken[np.searchsorted(taken, start) : np.searchsorted(taken, start + WEIGHTS)] - start] = -1
        places = _first_largest(part, min(count, part.size))
        candidates.append(places + start)
        magnitudes.append(part[places])
    return np.concatenate(candidates)[_first_largest(np.concatenate(magnitudes), count)]


def _first_largest(numbers: Floats, count: int) -> Places:
    """Return the places of the `count` largest numbers, ascending; the first of equals."""
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(numbers, numbers.size - count)[numbers.size - count]
    larger = np.flatnonzero(numbers > least)
    return np.sort(np.concatenate([larger, np.flatnonzero(numbers == least)[: count - larger.size]]))
