"""The clustering of one row in NumPy: the reference of the kernel's tests, and the fallback without a compiler.

In sorted order clusters are intervals. With W and S the prefix sums of the weights and of weight·value, an interval
(t, i] explains (S[i] - S[t])² / (W[i] - W[t]) of Σ weight·value², so the best clustering is

    D[j][i] = max over t < i of D[j-1][t] + (S[i] - S[t])² / (W[i] - W[t]).

The best t rises with i, so rows i are solved at strides that are halved, each between the best t of its neighbours
(Wu 1991; Grønlund et al. 2017, arXiv:1701.07204).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

NEGLIGIBLE = 2.0**-50  # part of all weight that prefix sums would lose in rounding


def cluster(values: Floats, weights: Floats, count: int) -> tuple[Floats, Doubles]:
    """The [count] ascending centroids of finite `values` [K], and the weight of each cluster."""
    numbers, masses = _distinct(values, weights)
    centre = float(masses @ numbers / masses.sum())
    weight = np.concatenate([[0.0], np.cumsum(masses)])
    moment = np.concatenate([[0.0], np.cumsum(masses * (numbers - centre))])
    clusters = min(count, len(numbers))
    ends = _ends(weight, moment, clusters)
    mass = np.diff(weight[ends])
    centroids = (centre + np.diff(moment[ends]) / mass).astype(np.float32)
    return np.pad(centroids, (0, count - clusters), "edge"), np.pad(mass, (0, count - clusters))


def assign(values: Floats, centroids: Floats) -> npt.NDArray[np.uint8]:
    """The index of the nearest of ascending `centroids` [k] for each of `values` [K], the lower one of two."""
    wide = centroids.astype(np.float64)
    return np.searchsorted((wide[:-1] + wide[1:]) / 2, values.astype(np.float64), side="left").astype(np.uint8)


def _distinct(values: Floats, weights: Floats) -> tuple[Doubles, Doubles]:
    """The distinct values of nonzero weight, ascending, and their weights; equal weights if all are zero."""
    weights = weights if weights.any() else np.ones_like(weights)
    masses = weights.astype(np.float64)
    kept = masses > masses.sum() * NEGLIGIBLE
    numbers, places = np.unique(values[kept].astype(np.float64), return_inverse=True)
    return numbers, np.bincount(places, masses[kept]).astype(np.float64)


def _ends(weight: Doubles, moment: Doubles, clusters: int) -> Places:
    """[clusters + 1], the boundaries of the best clusters in the sorted values."""
    rows = len(weight) - 1
    best = np.concatenate([[-np.inf], moment[1:] ** 2 / weight[1:]])  # no cluster is empty
    layers = []
    for _ in range(1, clusters):
        best, cuts = _layer(weight, moment, best)
        layers.append(cuts)
    ends = [rows]
    for cuts in reversed(layers):
        ends.append(int(cuts[ends[-1]]))
    return np.array([0, *reversed(ends)])


def _layer(weight: Doubles, moment: Doubles, before: Doubles) -> tuple[Doubles, Places]:
    """D for one cluster more, for every row, and the t of the maximum."""
    rows = len(weight) - 1
    best, cuts = np.full(rows + 1, -np.inf), np.zeros(rows + 1, np.int64)
    stride = 1 << (rows.bit_length() - 1)
    while stride:
        row = np.arange(stride, rows + 1, 2 * stride)
        above = np.minimum(row + stride, rows)
        high = np.where(row + stride <= rows, np.minimum(cuts[above], row - 1), row - 1)
        low = np.minimum(cuts[row - stride], high)
        starts = np.concatenate([[0], np.cumsum(high - low + 1)])
        length = np.diff(starts)
        t = np.arange(starts[-1]) + np.repeat(low - starts[:-1], length)
        i = np.repeat(row, length)
        score = before[t] + (moment[i] - moment[t]) ** 2 / (weight[i] - weight[t])
        best[row] = np.maximum.reduceat(score, starts[:-1])
        hits = np.flatnonzero(score == np.repeat(best[row], length))
        cuts[row] = t[hits[np.searchsorted(hits, starts[:-1])]]
        stride //= 2
    return best, cuts
