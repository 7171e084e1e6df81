"""The sum of xᵀ·x over the inputs x of a layer: GPTQ's Hessian up to a factor."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from intaglio.processes.threads import in_parallel

Floats = npt.NDArray[np.float32]

COLUMNS = 256  # of a block of the products
NUMBERS = 1 << 25  # of the products of a task: 128 MiB


def second_moments(rows: Iterable[Floats], channels: int) -> Floats:
    """Return the sum of xᵀ·x over rows [tokens, channels] of all batches: [channels, channels]."""
    sums = np.zeros((channels, channels), np.float32)
    for part in rows:
        add_products(sums, part)
    return mirrored(sums)


def column_parts(channels: int) -> list[slice]:
    """Divide the columns into parts whose products have about `NUMBERS` numbers, however wide the layer is."""
    bounds = [0]
    for stop in range(COLUMNS, channels + COLUMNS, COLUMNS):
        stop = min(stop, channels)
        if stop == channels or (stop - bounds[-1]) * (channels - bounds[-1]) >= NUMBERS:
            bounds.append(stop)
    return [slice(*bound) for bound in pairwise(bounds)]


def products_of(rows: Floats, columns: int) -> Floats:
    """Return xᵀ·x of `rows` [tokens, channels] for its first columns: [columns, channels], from the diagonal on."""
    products = np.zeros((columns, rows.shape[1]), np.float32)
    add_products(products, rows)
    return products


def add_products(sums: Floats, rows: Floats) -> None:
    """Add xᵀ·x of `rows` [tokens, channels] to the blocks of `sums` [columns, channels] from the diagonal on."""

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
