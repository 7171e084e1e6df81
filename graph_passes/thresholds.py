"""From an activation's statistics to its clipping threshold: the largest magnitude that the integers will hold.

With b bits and the threshold t, a number x becomes round(x / d) clipped to ±(2^(b-1) - 1), for the step
d = t / (2^(b-1) - 1).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from intaglio.graph_passes.activation_statistics import Histogram, Statistics

Method = Literal["absmax", "percentile", "mse", "entropy"]

FEW_BITS = 8  # up to here clipping pays; beyond, steps are so fine that the whole range and a margin are kept
MARGIN = 1.125  # of the range above what was seen, at more bits: other texts go a little further
CANDIDATES = 128  # thresholds that `mse` and `entropy` try, evenly spaced

Numbers = npt.NDArray[np.float64]


def threshold(statistics: Statistics, bits: int) -> float:
    """The threshold for signed integers of `bits` (2 or more), by the method that the statistics were made for.

    Up to 8 bits:

    - `absmax`: the absolute maximum;
    - `percentile`: what `percentile` per cent of the magnitudes do not exceed;
    - `mse`: the least mean squared error, clipping and rounding together;
    - `entropy`: the least Kullback-Leibler divergence between the distributions before and after.

    Beyond 8 bits: the absolute maximum and a margin of one eighth. 0 where nothing but zeros was seen.
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
    """The magnitude below which so many per cent lie, taken as evenly spread within a bin."""
    cumulative = np.concatenate([[0], np.cumsum(histogram.counts)])
    wanted = percentile / 100 * cumulative[-1]
    place = int(np.searchsorted(cumulative[1:], wanted))
    inside = (wanted - cumulative[place]) / max(histogram.counts[place], 1)
    edges = histogram.edges
    return float(edges[place] + inside * (edges[place + 1] - edges[place]))


def _least_squared_error(histogram: Histogram, levels: int, absmax: float) -> float:
    """The best of `CANDIDATES`, with magnitudes taken as evenly spread within a bin.

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
    """Try thresholds at bins' ends, from `levels` bins to all that were used.

    As in S. Migacz, "8-bit inference with TensorRT" (GTC 2017): the reference keeps what is clipped in its last bin,
    the quantised distribution spreads each level's count over those of its bins that were not empty.
    """
    counts = histogram.counts.astype(np.float64)
    counts[0] = counts[1]  # zeros lose nothing at any threshold; ReLU's and softmax's would decide alone
    used = int(np.flatnonzero(histogram.counts)[-1]) + 1
    if used <= levels:
        return float(histogram.edges[used])
    tries = [*range(levels, used, max(1, (used - levels) // CANDIDATES)), used]
    divergences = [_divergence(counts, tried, levels) for tried in tries]
    return float(histogram.edges[tries[int(np.argmin(divergences))]])


def _divergence(counts: Numbers, tried: int, levels: int) -> float:
    """The Kullback-Leibler divergence, in nats, of clipping after `tried` bins and rounding to `levels`."""
    kept = counts[:tried]
    reference = kept.copy()
    reference[-1] += counts[tried:].sum()
    level = np.arange(tried) * levels // tried
    occupied = kept > 0
    spread = (np.bincount(level, kept, levels) / np.maximum(np.bincount(level, occupied, levels), 1))[level]
    quantised = np.where(occupied, spread, 0)
    if reference[-1] > 0:
        quantised[-1] = max(quantised[-1], 1)  # what is clipped into an empty bin costs much, not infinitely much
    total, quantised_total = reference.sum(), quantised.sum()
    if total == 0:
        return 0.0
    seen = reference > 0
    p, q = reference[seen] / total, quantised[seen] / quantised_total
    return float(p @ np.log(p / q))
