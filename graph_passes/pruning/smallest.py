"""Find the weights of smallest magnitude: in one layer, or in all layers without loading all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.graph_passes.weights.uniform import Floats

HALF = 16  # bits of a float32 per histogram


@dataclass
class Threshold:
    """The magnitude below which weights are removed, and how many of exactly this magnitude are removed too."""

    magnitude: np.float32
    ties: int

    def smallest(self, matrix: Floats) -> npt.NDArray[np.bool_]:
        """Return a mask of the weights of `matrix` to remove. Ties are removed in the order of the calls."""
        magnitudes = np.abs(matrix)
        chosen: npt.NDArray[np.bool_] = magnitudes < self.magnitude
        tied = np.flatnonzero(magnitudes == self.magnitude)[: self.ties]
        chosen.reshape(-1)[tied] = True
        self.ties -= len(tied)
        return chosen


def of_one(matrix: Floats, number: int) -> Threshold:
    """Return the threshold that removes `number` weights of `matrix`."""
    if number == 0:
        return Threshold(np.float32(0), 0)
    magnitudes = np.abs(matrix).reshape(-1)
    last = np.float32(np.partition(magnitudes, number - 1)[number - 1])
    return Threshold(last, number - int(np.count_nonzero(magnitudes < last)))


def of_all(matrices: Iterable[Iterable[Floats]], number: int) -> Threshold:
    """Return the threshold that removes `number` weights of several matrices, which are read twice, one at a time.

    The bits of a magnitude, as an integer, have the order of the magnitudes: the upper half of the threshold's bits is
    found with a histogram of upper halves, the lower half with one of the numbers that have this upper half.
    """
    if number == 0:
        return Threshold(np.float32(0), 0)
    first, second = matrices
    upper = np.zeros(1 << HALF, np.int64)
    for matrix in first:
        upper += np.bincount((_bits(matrix) >> HALF).reshape(-1), minlength=1 << HALF)
    high = int(np.searchsorted(upper.cumsum(), number))
    left = number - int(upper[:high].sum())
    lower = np.zeros(1 << HALF, np.int64)
    for matrix in second:
        bits = _bits(matrix).reshape(-1)
        lower += np.bincount(bits[bits >> HALF == high] & ((1 << HALF) - 1), minlength=1 << HALF)
    low = int(np.searchsorted(lower.cumsum(), left))
    magnitude = np.float32(np.array([high << HALF | low], np.uint32).view(np.float32)[0])
    return Threshold(magnitude, left - int(lower[:low].sum()))


def _bits(matrix: Floats) -> npt.NDArray[np.uint32]:
    return np.abs(matrix).view(np.uint32)
