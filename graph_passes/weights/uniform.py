"""Uniform groups: every `group_size` consecutive weights of a row have their own scale and zero point.

    w = scale·(q - zero_point), q of 0 to 2**bits - 1

The operator GroupMatMul multiplies with these numbers (QIGen, arXiv:2307.03738, equation 2). In symmetric groups the
zero point is 2**(bits - 1) everywhere and is not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError
from intaglio.plugins.bit_packing import WORD
from intaglio.plugins.group_matmul.signature import LARGEST_GROUP

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Grid:
    """The values that a matrix [N, K] can take, per group; K is a multiple of the number of groups.

    scales: float32 [N, groups], none of them 0; zero_points: uint8 [N, groups], or None where all are 2**(bits - 1).
    """

    bits: int
    scales: Floats
    zero_points: Codes | None

    @property
    def zeros(self) -> Floats:
        """The zero points [N, groups], or [1, groups] if all rows have the same."""
        if self.zero_points is not None:
            return self.zero_points.astype(np.float32)
        return np.full((1, self.scales.shape[1]), 1 << (self.bits - 1), np.float32)

    def of(self, rows: slice) -> Grid:
        """Return the grid of some rows of the matrix."""
        return Grid(self.bits, self.scales[rows], None if self.zero_points is None else self.zero_points[rows])

    def encode(self, weight: Floats) -> Codes:
        """Return the codes q [N, K] nearest to `weight`."""
        codes = np.empty(weight.shape, np.uint8)
        for index, columns in enumerate(self._columns(weight.shape[1])):
            scaled = weight[:, columns] / self.scales[:, index, None]
            np.rint(scaled, out=scaled)
            scaled += self.zeros[:, index, None]
            codes[:, columns] = np.clip(scaled, 0, (1 << self.bits) - 1, out=scaled)
        return codes

    def decode(self, codes: Codes) -> Floats:
        """Return the weights [N, K] that `codes` represent."""
        weight = codes.astype(np.float32)
        for index, columns in enumerate(self._columns(codes.shape[1])):
            weight[:, columns] -= self.zeros[:, index, None]
            weight[:, columns] *= self.scales[:, index, None]
        return weight

    def _columns(self, length: int) -> list[slice]:
        groups = self.scales.shape[1]
        size = length // groups
        return [slice(index * size, (index + 1) * size) for index in range(groups)]


def squares(weight: Floats, rounded: Floats) -> npt.NDArray[np.float64]:
    """Return [Σ (weight - rounded)², Σ weight²], whose quotient is the error of a rounded weight."""
    lost = rounded - weight
    return np.array([np.vdot(lost, lost), np.vdot(weight, weight)], np.float64)


def fit(weight: Floats, bits: int, group_size: int, symmetric: bool, half: bool = False) -> Grid:
    """Return the grid of each group of `weight` [N, K], from its smallest to its largest number.

    The group size comes from `usable_group_size`; K is a multiple of 32. `half`: scales are float16 numbers.
    """
    groups = _groups(weight, group_size)
    lowest, highest = groups.min(axis=2), groups.max(axis=2)
    return _symmetric(lowest, highest, bits, half) if symmetric else asymmetric(lowest, highest, bits, half)


def usable_group_size(length: int, group_size: int) -> int:
    """Return the largest multiple of 32 up to `group_size` (0: a whole row) that divides rows of `length` weights.

    It is at most 65536, the limit of the kernels.
    """
    most = min(group_size or length, length, LARGEST_GROUP)
    return next(size for size in range(most, 0, -WORD) if length % size == 0)


def asymmetric(lowest: Floats, highest: Floats, bits: int, half: bool = False) -> Grid:
    """Return the grid from `lowest` to `highest` of each group, both [N, groups], with 0 exactly on the grid."""
    lowest = np.minimum(lowest, 0)
    scales = usable((np.maximum(highest, 0) - lowest) / np.float32((1 << bits) - 1), half)
    zero_points = np.clip(np.rint(-lowest / scales), 0, (1 << bits) - 1)
    return Grid(bits, scales, zero_points.astype(np.uint8))


def _symmetric(lowest: Floats, highest: Floats, bits: int, half: bool) -> Grid:
    """Return a symmetric grid: the largest magnitude is at q = 0, the far end; the scale has its sign."""
    farthest = np.where(-lowest > highest, lowest, highest)
    return Grid(bits, usable(np.asarray(farthest, np.float32) / np.float32(-(1 << (bits - 1))), half), None)


def _groups(weight: Floats, group_size: int) -> Floats:
    """Reshape `weight` to [N, groups, group_size]."""
    rows, length = weight.shape
    size = usable_group_size(length, group_size)
    return weight.reshape(rows, length // size, size)


def usable(scales: Floats, half: bool = False) -> Floats:
    """Replace scales that are 0, or too small to divide by, by 1: such a group rounds to zeros.

    `half`: the others become the nearest float16 numbers. Raises `GraphError` for one beyond these.
    """
    if half:
        if (largest := float(np.abs(scales).max())) > float(np.finfo(np.float16).max):
            raise GraphError(f"scale_dtype float16: a scale of {largest:g} is beyond its range. Remove scale_dtype.")
        scales = scales.astype(np.float16).astype(np.float32)
    return np.where(np.abs(scales) < np.finfo(np.float32).tiny, 1, scales).astype(np.float32)
