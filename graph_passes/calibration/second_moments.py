"""The sum of xᵀ·x over the inputs x of a layer: GPTQ's Hessian up to a factor."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from intaglio.processes.threads import in_parallel

Floats = npt.NDArray[np.float32]

COLUMNS = 256  # of a block of the products


def second_moments(rows: Iterable[Floats], channels: int) -> Floats:
    """Return the sum of xᵀ·x over rows [tokens, channels] of all batches: [channels, channels]."""
    sums = np.zeros((channels, channels), np.float32)
    for part in rows:
        add_products(sums, part)
    return mirrored(sums)


def add_products(sums: Floats, rows: Floats) -> None:
    """Add xᵀ·x of `rows` [tokens, channels] to the blocks of `sums` [channels, channels] from the diagonal on."""

    def add(start: int) -> None:
        block = slice(start, start + COLUMNS)
        sums[block, start:] += rows[:, block].T @ rows[:, start:]

    in_parallel(add, range(0, len(sums), COLUMNS))


def mirrored(sums: Floats) -> Floats:
    """Copy what lies above the diagonal of `sums` below it, in place; return it."""
    for start in range(0, len(sums), COLUMNS):
        block = slice(start, start + COLUMNS)
        sums[start + COLUMNS :, block] = sums[block, start + COLUMNS :].T
        sums[block, block] = np.triu(sums[block, block]) + np.triu(sums[block, block], 1).T  # BLAS may round both apart
    return sums
