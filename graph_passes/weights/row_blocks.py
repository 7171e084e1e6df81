"""Split a large matrix into blocks of rows, to limit the size of temporary arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

WEIGHTS = 1 << 22  # of a block: 16 MiB in float32


def row_blocks(matrix: npt.NDArray[Any]) -> Iterator[slice]:
    """Yield slices of the rows of `matrix` [N, K], in order, with about `WEIGHTS` numbers each."""
    rows = max(1, WEIGHTS // matrix.shape[1])
    for start in range(0, len(matrix), rows):
        yield slice(start, min(start + rows, len(matrix)))
