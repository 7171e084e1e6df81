"""Choose the clipping threshold of an activation from its statistics: the largest magnitude of the integers.

With b bits and the threshold t, a number x becomes round(x / d) clipped to ±(2^(b-1) - 1), for the step
d = t / (2^(b-1) - 1).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from intaglio.graph_passes.calibration.activation_statistics import Histogram, Statistics

Method = Literal["absmax", "percentile", "mse", "entropy"]

FEW_BITS = 8  # up to here clipping helps; with more bits, steps are fine enough to keep the whole range with a margin
MARGIN = 1.125  # factor on the observed range, at more bits: other texts go a little further
CANDIDATES = 128  # thresholds that `mse` and `entropy` try, evenly spaced

Numbers = npt.NDArray[np.float64]


def threshold(statistics: Statistics, bits: int) -> float:
    """Return the threshold for signed integers of `bits` (2 or more), by the method of the statistics.

    Up to 8 bits:

    - `absmax`: the absolute maximum;
    - `percentile`: the value that `percentile` per cent of the magnitudes do not exceed;
    - `mse`: the least mean squared error, clipping and rounding together;
    - `entropy`: the least Kullback-Leibler divergence between the distributions before and after.

    Beyond 8 bits: the absolute maximum plus a margin of one eighth. 0 if all numbers were 0.
    """
    if statistics.absmax == 0:
        return 0.0
    if bits > FEW_BITS:
        return statistics.absmax * MARGIN
    histogram, levels = statistics.histogram, 2 ** (bits - 1) - 1
    if statistics.method == "percentile":
        chosen = _percentile(histogram, statistics.percentile)
    elif statistics.method == "mse":
        chosen = _least_squared_error(histogram, levels, statistics.absmax)
    elif statistics.method == "entropy":
        chosen = _least_divergence(histogram, levels + 1)
    else:
        chosen = statistics.absmax
    return min(chosen, statistics.absmax)


def _percentile(histogram: Histogram, percentile: float) -> float:
    """Return the percentile of the magnitudes, assumed to be evenly spread within a bin."""
    cumulative = np.concatenate([[0], np.cumsum(histogram.counts)])
    wanted = percentile / 100 * cumulative[-1]
    place = int(np.searchsorted(cumulative[1:], wanted))
    inside = (wanted - cumulative[place]) / max(histogram.counts[place], 1)
    edges = histogram.edges
    return float(edges[place] + inside * (edges[place + 1] - edges[place]))


def _least_squared_error(histogram: Histogram, levels: int, absmax: float) -> float:
    """Return the best of `CANDIDATES`, assuming magnitudes to be evenly spread within a bin.

    The squared error of one magnitude x is (x - n·d)² with n = min(round(x / d), levels). Each step before x
    contributes d³/12 to its integral from 0 to x, and the last, unfinished one (x - n·d)³/3; clipped magnitudes too.
    """
    used = np.flatnonzero(histogram.counts)[-1] + 1
    edges = histogram.edges[: used + 1]
    density = histogram.counts[:used] / np.diff(edges)
    candidates = absmax * np.arange(1, CANDIDATES + 1) / CANDIDATES
    errors = [_squared_error(edges, density, levels, candidate) for candidate in candidates]
    return float(candidates[int(np.argmin(errors))])


def _squared_error(edges: Numbers, density: Numbers, levels: int, candidate: float) -> float:
    step = candidate / levels
    nearest = np.minimum(np.rint(edges / step), levels)
    integral = nearest * (step**3 / 12) + (edges - nearest * step) ** 3 / 3
    return float(density @ np.diff(integral))


def _least_divergence(histogram: Histogram, levels: int) -> float:
    """Return the best threshold at the end of a bin, from `levels` bins to all used bins.

    As in S. Migacz, "8-bit inference with TensorRT" (GTC 2017): the reference counts clipped numbers in its last bin;
    the quantised distribution spreads each level's count over its non-empty bins.
    """
    counts = histogram.counts.astype(np.float64)
    counts[0] = counts[1]  # zeros are exact at any threshold; those of ReLU and softmax would dominate
    used = int(np.flatnonzero(histogram.counts)[-1]) + 1
    if used <= levels:
        return float(histogram.edges[used])
    tries = [*range(levels, used, max(1, (used - levels) // CANDIDATES)), used]
    divergences = [_divergence(counts, tried, levels) for tried in tries]
    return float(histogram.edges[tries[int(np.argmin(divergences))]])


def _divergence(counts: Numbers, tried: int, levels: int) -> float:
    """Return the Kullback-Leibler divergence, in nats, of clipping after `tried` bins and rounding to `levels`."""
    kept = counts[:tried]
    reference = kept.copy()
    reference[-1] += counts[tried:].sum()
    level = np.arange(tried) * levels // tried
    occupied = kept > 0
    spread = (np.bincount(level, kept, levels) / np.maximum(np.bincount(level, occupied, levels), 1))[level]
    quantised = np.where(occupied, spread, 0)
    if reference[-1] > 0:
        quantised[-1] = max(quantised[-1], 1)  # clipping into an empty bin costs much, but not infinitely much
    total, quantised_total = reference.sum(), quantised.sum()
    if total == 0:
        return 0.0
    seen = reference > 0
    p, q = reference[seen] / total, quantised[seen] / quantised_total
    return float(p @ np.log(p / q))
