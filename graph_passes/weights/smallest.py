"""Which weights have the smallest magnitudes: in one layer, or in all of them without holding all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.graph_passes.weights.uniform import Floats

HALF = 16  # bits of a float32 that a histogram is made by at a time


@dataclass
class Threshold:
    """The magnitude below which weights are to go, and how many of those that have exactly this magnitude go too."""

    magnitude: np.float32
    ties: int

    def smallest(self, matrix: Floats) -> npt.NDArray[np.bool_]:
        """Where `matrix` holds weights that are to go. Ties go in the order in which they are met."""
        magnitudes = np.abs(matrix)
        chosen: npt.NDArray[np.bool_] = magnitudes < self.magnitude
        tied = np.flatnonzero(magnitudes == self.magnitude)[: self.ties]
        chosen.reshape(-1)[tied] = True
        self.ties -= len(tied)
        return chosen


def of_one(matrix: Floats, number: int) -> Threshold:
    """The threshold that `number` weights of `matrix` are to go by."""
    if number == 0:
        return Threshold(np.float32(0), 0)
    magnitudes = np.abs(matrix).reshape(-1)
    last = np.float32(np.partition(magnitudes, number - 1)[number - 1])
    return Threshold(last, number - int(np.count_nonzero(magnitudes < last)))


def of_all(matrices: Iterable[Iterable[Floats]], number: int) -> Threshold:
    """The threshold that `number` weights of several matrices are to go by, which are looked at twice, one at a time.

    The bits of a magnitude, taken for an integer, are in the order of the magnitudes: the upper half of the last one's
    bits is found by a histogram of upper halves, the lower half by one of those that have this upper half.
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
