"""Distances between two arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def max_abs(actual: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]) -> float:
    """Largest absolute difference; 0 for empty arrays, infinity if only one side is NaN or infinite."""
    if actual.size == 0:
        return 0.0
    return float(np.max(difference(actual, expected)))


def difference(actual: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """|actual − expected| as float64 of the same shape; equal infinities and pairs of NaN differ by 0."""
    left, right = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def cosine(actual: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]) -> float:
    """Smallest cosine between the vectors along the last axis.

    Two zero vectors count as 1, one as 0, a vector with NaN or infinity as -1; empty arrays return 1.
    """
    if actual.size == 0:
        return 1.0
    left = actual.astype(np.float64).reshape(-1, actual.shape[-1] if actual.ndim else 1)
    right = expected.astype(np.float64).reshape(left.shape)
    both_zero = ~left.any(axis=-1) & ~right.any(axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
        cosines = np.einsum("ij,ij->i", left, right) / np.where(lengths == 0, 1.0, lengths)
    return float(np.min(np.where(both_zero, 1.0, np.nan_to_num(cosines, nan=-1.0))))
