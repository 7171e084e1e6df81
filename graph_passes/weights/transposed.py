"""The transpose of a large matrix, copied tile by tile: NumPy's own copy reads one number of each cache line."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.processes.threads import in_parallel

TILE = 128  # rows and columns: two tiles of float32 fit in a core's second cache


def transposed(matrix: npt.NDArray[Any], dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
    """Return a copy of `matrix` [N, K] as [K, N], row-major, in `dtype`, by default its own."""
    result = np.empty(matrix.shape[::-1], dtype or matrix.dtype)

    def copy(start: int) -> None:
        rows = slice(start, start + TILE)
        for first in range(0, len(matrix), TILE):
            columns = slice(first, first + TILE)
            result[rows, columns] = matrix[columns, rows].T

    in_parallel(copy, range(0, len(result), TILE))
    return result
