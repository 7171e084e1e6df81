"""Pearson's chi-squared test of whether counts follow a distribution, for samples with a fixed seed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from math import sqrt

FEWEST = 8.0  # expected count of a cell; smaller ones are merged
SIGMAS = 3.5  # limit for rejecting the distribution: one of 4,000 samples exceeds it by chance


def follows(sample: Iterable[Hashable], distribution: Mapping[Hashable, float]) -> bool:
    """Whether `sample` may be drawn from `distribution`, whose probabilities sum to 1."""
    counts = dict.fromkeys(distribution, 0)
    for drawn in sample:
        if drawn not in counts:
            return False
        counts[drawn] += 1
    size = sum(counts.values())
    cells, rest = [], [0.0, 0.0]
    for value, probability in distribution.items():
        if size * probability >= FEWEST:
            cells.append((counts[value], size * probability))
        else:
            rest = [rest[0] + counts[value], rest[1] + size * probability]
    if rest[1] >= FEWEST:
        cells.append((int(rest[0]), rest[1]))
    statistic = sum((found - expected) ** 2 / expected for found, expected in cells)
    return statistic < bound(len(cells) - 1)


def bound(freedom: int) -> float:
    """The statistic exceeded by chance with the probability of `SIGMAS` (Wilson and Hilferty 1931)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + SIGMAS * sqrt(part)) ** 3)
