"""Whether counts follow a distribution: Pearson's test, for samples whose seed is fixed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from math import sqrt

FEWEST = 8.0  # expected in a cell; smaller ones are put together
SIGMAS = 3.5  # beyond which a sample is none of the distribution: one of 4,000 would be by chance


def follows(sample: Iterable[Hashable], distribution: Mapping[Hashable, float]) -> bool:
    """Whether `sample` may be drawn from `distribution`, whose probabilities add up to 1."""
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
    """The statistic that is exceeded by chance as rarely as `SIGMAS` (Wilson and Hilferty 1931)."""
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + SIGMAS * sqrt(part)) ** 3)
