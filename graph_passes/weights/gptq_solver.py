"""GPTQ's rounding: column by column, each error is compensated by the columns not rounded yet.

Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (arXiv:2210.17323),
algorithm 1. With activation ordering, columns are rounded in the order of decreasing diagonal entries of the Hessian.
The groups keep their places and their grids: both are fixed from the original weights before the first column is
rounded ("static groups"). So the codes are stored in the order of the matrix, and the operator does not look up scales
by permuted indices, which makes activation ordering slow elsewhere (SqueezeLLM, table 3.3).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from intaglio.graph_passes.weights.uniform import Codes, Floats, Grid, squares
from intaglio.processes.threads import in_parallel

Doubles = npt.NDArray[np.float64]

BLOCK = 128  # columns whose errors are propagated to later columns in one product (GPTQ, section 3.3, step 2)
SMALL = 64  # rows of a matrix that is factored without splitting
ROWS = 256  # rows or columns of a product per task of a thread
MORE_DAMPING = 10.0  # factor on the damping if the Hessian has no Cholesky factor


class Solver:
    """Rounds the weights of layers that share an input x, given the sum of xᵀ·x over calibration text."""

    def __init__(self, hessian: Floats, damping: float = 0.01, act_order: bool = True):
        """`hessian` [K, K] is not modified; `damping`: added to its diagonal, as a fraction of its mean."""
        diagonal = np.diag(hessian)
        self._order = np.argsort(-diagonal, kind="stable") if act_order else np.arange(len(diagonal))
        self._factor, self._added = inverse_factor(hessian, self._order, damping)

    def round(self, weight: Floats, grid: Grid) -> Codes:
        """Return codes [N, K] on `grid` for `weight` [N, K], which is not modified, that change x·Wᵀ little.

        Rows are independent. A pass calls this for blocks of them, as temporary arrays are as large as `weight`.
        """
        codes = np.empty(weight.shape[::-1], np.uint8)
        group_size = len(self._order) // grid.scales.shape[1]
        scales, zeros = np.ascontiguousarray(grid.scales.T), np.ascontiguousarray(grid.zeros.T)  # [groups, N or 1]
        top = (1 << grid.bits) - 1

        def nearest(index: int, column: Floats) -> Floats:
            group = index // group_size
            rounded: Floats = np.rint(column / scales[group])
            rounded += zeros[group]
            np.clip(rounded, 0, top, out=rounded)
            codes[index] = rounded
            rounded -= zeros[group]
            rounded *= scales[group]
            return rounded

        self.sweep(weight, nearest)
        return np.ascontiguousarray(codes.T)

    def sweep(self, weight: Floats, rounded: Callable[[int, Floats], Floats]) -> Doubles:
        """Round the columns of `weight` [N, K], which is not modified, one after the other.

        `rounded` gets the index of a column, and the column [N] with the preceding errors compensated; it returns the
        rounded column. The result, [N], is d·H·dᵀ for each row's difference d: the squared change of its output.
        """
        order, factor = self._order, self._factor
        columns = np.ascontiguousarray(weight.T[order])  # [K, N], contiguous columns for speed
        changes = np.zeros(len(weight))
        for start in range(0, len(order), BLOCK):
            stop = min(start + BLOCK, len(order))
            differences = -weight.T[order[start:stop]]
            errors = np.empty((stop - start, columns.shape[1]), np.float32)
            for index in range(start, stop):
                column = columns[index]
                column -= factor[start:index, index] @ errors[: index - start]
                stored = rounded(int(order[index]), column)
                differences[index - start] += stored
                np.subtract(column, stored, out=errors[index - start])
                errors[index - start] /= factor[index, index]
            columns[stop:] -= factor[start:stop, stop:].T @ errors
            # With the damped Hessian D = (UᵀU)⁻¹, d = -errors·U, so that the squares of the errors add up to d·D·dᵀ.
            changes += np.einsum("kn,kn->n", errors, errors)
            changes -= self._added * np.einsum("kn,kn->n", differences, differences)
        return np.maximum(changes, 0)


def rounded_rows(solver: Solver, weight: Floats, grid: Grid) -> tuple[Codes, npt.NDArray[np.float64]]:
    """Return `solver`'s codes for rows of a weight, and their `squares`."""
    codes = solver.round(weight, grid)
    return codes, squares(weight, grid.decode(codes))


def inverse_factor(hessian: Floats, order: npt.NDArray[np.intp], damping: float) -> tuple[Floats, float]:
    """U [K, K], upper triangular, with UᵀU the inverse of the damped Hessian (the Cholesky form of GPTQ's step 3).

    `order` [K]: of the rows and columns of `hessian` in U.
    The inverse itself is never computed: H = R·Rᵀ with R upper triangular, from the Cholesky factor L of H with its
    rows and columns reversed; then U is the inverse of R, which is the inverse of L with its rows and columns reversed.
    Columns that were 0 in the whole text are independent of the others. Second result: what was added to the diagonal.
    """
    reverse = order[::-1]
    diagonal = np.diag(hessian)[reverse].astype(np.float64)
    mean = diagonal.mean() or 1.0
    part = damping
    factor = np.empty(hessian.shape)

    def gather(rows: slice) -> None:
        factor[rows] = hessian[reverse[rows]][:, reverse]

    while True:
        in_parallel(gather, _blocks(len(order)))
        np.fill_diagonal(factor, diagonal + part * mean)
        try:
            invert_cholesky(factor)
        except np.linalg.LinAlgError:
            part = max(part, 1e-4) * MORE_DAMPING
        else:
            return factor[::-1, ::-1].astype(np.float32, order="C"), part * mean


def invert_cholesky(matrix: Doubles) -> None:
    """Replace `matrix` by the inverse of its lower Cholesky factor, recursively by halves: mostly matrix products.

    Raises `LinAlgError` for a matrix that is not positive definite. The matrix of 28672 inputs takes 6.6 GB, so it is
    worked on in its place.
    """
    size = len(matrix)
    if size <= SMALL:
        matrix[:] = np.tril(np.linalg.inv(np.linalg.cholesky(matrix)))
        return
    half = size // 2
    first, below, last = matrix[:half, :half], matrix[half:, :half], matrix[half:, half:]

    # The zeros of triangles are left out, and blocks are ordered so that none is needed after it was replaced.
    def solve(rows: slice) -> None:  # below·firstᵀ: the factor
        for columns in reversed(_blocks(half)):
            below[rows, columns] = below[rows, : columns.stop] @ first[columns, : columns.stop].T

    def subtract(rows: slice) -> None:  # last - below·belowᵀ
        last[rows, : rows.stop] -= below[rows] @ below[: rows.stop].T

    def multiply(rows: slice) -> None:  # below·first
        for columns in _blocks(half):
            below[rows, columns] = below[rows, columns.start :] @ first[columns.start :, columns]

    def complete(columns: slice) -> None:  # -last·below
        for rows in reversed(_blocks(size - half)):
            below[rows, columns] = -(last[rows, : rows.stop] @ below[: rows.stop, columns])

    invert_cholesky(first)
    in_parallel(solve, _blocks(size - half))
    in_parallel(subtract, _blocks(size - half))
    invert_cholesky(last)
    in_parallel(multiply, _blocks(size - half))
    in_parallel(complete, _blocks(half))
    matrix[:half, half:] = 0


def _blocks(size: int) -> list[slice]:
    return [slice(start, min(start + ROWS, size)) for start in range(0, size, ROWS)]
