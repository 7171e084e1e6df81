"""Lookup tables: the centroids of every row of a weight, on a grid for fast kernels, and indices into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from intaglio.graph_passes.weights.row_blocks import row_blocks
from intaglio.plugins.native.clustering import assign, cluster
from intaglio.processes.threads import in_parallel

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.uint8]
TableBits = Literal["auto", 8, 16, 32]

FEWER = 1.01  # maximum error of a coarser grid, relative to float32 centroids


@dataclass(frozen=True)
class Table:
    """A weight [N, K] as lut[n, indices[n, k]]: lut [N, 2**bits] float32, ascending; indices [N, K] uint8.

    `error`: Σ sensitivity·(weight - stored weight)². `grid`: bits of the integers in each row of `lut`, which are
    multiplied by one factor; 32 for float32.
    """

    indices: Indices
    lut: Floats
    error: float
    grid: int


def fit(matrix: Floats, sensitivities: Floats, bits: int, table_bits: TableBits) -> Table:
    """Fit 2**bits centroids to each row of `matrix` [N, K] with the least error (SqueezeLLM, eq. 3.5).

    `table_bits`: the grid to round the centroids to, after which the weights are reassigned; "auto" is the coarsest
    grid whose error is less than 1 % above that of float32 centroids.
    """
    centroids = cluster(matrix, sensitivities, 2**bits).centroids
    if table_bits != "auto":
        return _on_grid(matrix, sensitivities, centroids, table_bits)
    least = _on_grid(matrix, sensitivities, centroids, 32)
    for grid in (8, 16):
        table = _on_grid(matrix, sensitivities, centroids, grid)
        if table.error <= FEWER * least.error:
            return table
    return least


def _on_grid(matrix: Floats, sensitivities: Floats, centroids: Floats, grid: int) -> Table:
    lut = centroids if grid == 32 else rounded(centroids, grid)
    indices = assign(matrix, lut)
    return Table(indices, lut, weighted_error(matrix, sensitivities, lut, indices), grid)


def rounded(centroids: Floats, grid: int) -> Floats:
    """Round centroids [N, k] to (factor of the row)·(integers of `grid` bits), the largest being 2**(grid - 1) - 1."""
    most = 2 ** (grid - 1) - 1
    factors = (np.abs(centroids).max(axis=1, keepdims=True) / np.float32(most)).astype(np.float32)
    steps = np.where(factors > 0, factors, 1).astype(np.float64)
    integers = np.clip(np.rint(centroids / steps), -most, most)
    lut: Floats = factors * integers.astype(np.float32)
    return lut


def weighted_error(matrix: Floats, sensitivities: Floats, lut: Floats, indices: Indices) -> float:
    """Return Σ sensitivity·(weight - lut[index])², summed in float64."""

    def of(part: slice) -> float:
        chosen = np.take_along_axis(lut[part], indices[part].astype(np.intp), axis=1)
        errors = np.square(matrix[part] - chosen, dtype=np.float64)
        return float(np.einsum("nk,nk->", errors, sensitivities[part], dtype=np.float64))

    return sum(in_parallel(of, row_blocks(matrix)))
