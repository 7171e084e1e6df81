"""Exact weighted k-means of the values in each row of a matrix: the centroids of a lookup table.

The kernels are compiled with those of the operators; without a compiler, the NumPy reference is used.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError
from intaglio.plugins import ort
from intaglio.plugins.native.clustering import reference
from intaglio.processes.threads import in_parallel

MOST = 256  # clusters: their indices are uint8
ROWS = 16  # rows per work item of a thread

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Clusters:
    """centroids: [N, k] float32, ascending in each row; masses: [N, k] float64, the sum of the weights of each."""

    centroids: Floats
    masses: npt.NDArray[np.float64]


def cluster(values: Floats, weights: Floats, count: int, threads: int | None = None) -> Clusters:
    """The `count` centroids of each row with the minimum of Σ weight·(value - nearest centroid)².

    values: [N, K] float32; weights: [N, K] float32, not negative. A row whose weights are all 0 counts as unweighted;
    one with fewer distinct values than `count` repeats its last centroid, with mass 0. `threads`: by default
    `usable_threads`. Raises `GraphError` for NaN, infinity and negative weights.
    """
    values, weights = (np.ascontiguousarray(array, np.float32) for array in (values, weights))
    if values.ndim != 2 or values.shape != weights.shape or values.shape[1] == 0 or not 1 <= count <= MOST:
        raise GraphError(
            f"clustering: values {list(values.shape)}, weights {list(weights.shape)}, {count} clusters: "
            f"expected two equal matrices with columns, and 1 to {MOST} clusters."
        )
    if not (np.isfinite(values).all() and np.isfinite(weights).all()):
        raise GraphError("clustering: NaN or infinity among the values or weights, expected finite numbers.")
    if weights.size and weights.min() < 0:
        raise GraphError(f"clustering: a weight of {weights.min():.3g}, expected none below 0.")
    rows, length = values.shape
    centroids = np.empty((rows, count), np.float32)
    masses = np.empty((rows, count), np.float64)
    library = _library()
    if library is None:
        for row in range(rows):
            centroids[row], masses[row] = reference.cluster(values[row], weights[row], count)
        return Clusters(centroids, masses)
    isa = ort.instruction_set_number()

    def work(start: int) -> None:
        part = slice(start, start + ROWS)
        done = library.intaglio_cluster_rows(
            isa, _pointer(values[part]), _pointer(weights[part]), ctypes.c_int64(len(values[part])),
            ctypes.c_int64(length), ctypes.c_int64(count), _pointer(centroids[part]), _pointer(masses[part]),
        )  # fmt: skip
        if not done:
            raise MemoryError

    in_parallel(work, range(0, rows, ROWS), threads)  # ctypes releases the GIL
    return Clusters(centroids, masses)


def assign(values: Floats, centroids: Floats) -> npt.NDArray[np.uint8]:
    """The index of the centroid nearest to each value, the lower one of two equally near.

    values: [N, K] float32, finite; centroids: [N, k] float32, ascending, k at most 256. Raises `GraphError` for other
    shapes.
    """
    values, centroids = (np.ascontiguousarray(array, np.float32) for array in (values, centroids))
    matrices = values.ndim == centroids.ndim == 2 and len(values) == len(centroids)
    if not matrices or not 1 <= centroids.shape[1] <= MOST:
        raise GraphError(
            f"assignment: values {list(values.shape)}, centroids {list(centroids.shape)}: "
            f"expected two matrices with equal rows, and 1 to {MOST} centroids in each."
        )
    library = _library()
    if library is None:
        return np.stack([reference.assign(row, table) for row, table in zip(values, centroids, strict=True)])
    indices = np.empty(values.shape, np.uint8)
    rows, length = values.shape
    library.intaglio_assign_rows(
        ort.instruction_set_number(), _pointer(values), ctypes.c_int64(rows), ctypes.c_int64(length),
        _pointer(centroids), ctypes.c_int64(centroids.shape[1]), _pointer(indices),
    )  # fmt: skip
    return indices


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled kernels, or None."""
    path = ort.library()
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    library.intaglio_cluster_rows.restype = ctypes.c_bool
    library.intaglio_assign_rows.restype = None
    return library


def _pointer(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
