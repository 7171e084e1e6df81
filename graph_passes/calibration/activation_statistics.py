"""Statistics of an activation from calibration: range, channels, and a histogram of its magnitudes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.errors import GraphError

KEY = "statistics"  # in `ir.Value.meta`
LOWEST = -100  # exponent of the smallest histogram range; numbers smaller than its first bin are counted in bin 0
BLOCK = 1 << 16  # numbers binned at a time, so that they stay in the CPU's cache

Floats = npt.NDArray[np.float32 | np.float64]


@dataclass
class Histogram:
    """Histogram of magnitudes in equal bins over [0, 2**exponent).

    The range is the smallest power of two above all added numbers. When it grows, neighbouring bins merge without
    rounding: the counts do not depend on the order or batching of the numbers.
    """

    bins: int  # a power of two
    exponent: int = LOWEST
    counts: npt.NDArray[np.int64] = field(init=False)  # [bins]

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.bins, np.int64)

    @property
    def edges(self) -> npt.NDArray[np.float64]:
        """The boundaries of the bins, [bins + 1]."""
        return np.ldexp(np.arange(self.bins + 1) / self.bins, self.exponent)

    def add(self, numbers: Floats, largest: float) -> None:
        """Count finite `numbers` (any shape) of magnitudes up to `largest`."""
        self._grow(math.frexp(largest)[1] if largest else LOWEST)
        flat = numbers.reshape(-1)
        scale = flat.dtype.type(math.ldexp(self.bins, -self.exponent))  # a power of two: the product is exact
        for start in range(0, flat.size, BLOCK):
            places = np.abs(flat[start : start + BLOCK])
            places *= scale
            self.counts += np.bincount(places.astype(np.intp), minlength=self.bins)

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`, which has the same number of bins and may be modified."""
        self._grow(other.exponent)
        other._grow(self.exponent)
        self.counts += other.counts

    def _grow(self, exponent: int) -> None:
        if exponent <= self.exponent:
            return
        merged = min(1 << min(exponent - self.exponent, 63), self.bins)  # bins that become one
        self.counts = np.pad(self.counts.reshape(-1, merged).sum(axis=1), (0, self.bins - self.bins // merged))
        self.exponent = exponent


@dataclass
class Statistics:
    """Statistics of one activation. `method` and `percentile` are the settings of `threshold`."""

    method: str = "absmax"
    percentile: float = 99.99
    bins: int = 2048
    minimum: float = math.inf
    maximum: float = -math.inf
    count: int = 0  # numbers seen
    histogram: Histogram = field(init=False)  # of the magnitudes
    channel_absmax: Floats | None = None  # [C], over all but the last axis; None where that axis has no fixed length
    channel_sum: npt.NDArray[np.float64] | None = None  # [C]
    channel_sums: list[npt.NDArray[np.float64]] | None = None  # of each array, if they are kept for `merge`

    def __post_init__(self) -> None:
        self.histogram = Histogram(self.bins)

    @property
    def absmax(self) -> float:
        """The largest magnitude; 0 without data."""
        return max(abs(self.minimum), abs(self.maximum)) if self.count else 0.0

    @property
    def channel_mean(self) -> npt.NDArray[np.float64] | None:
        """[C], the mean of each channel (of the last axis); None where that axis has no fixed length."""
        if self.channel_sum is None:
            return None
        return self.channel_sum / max(self.count // self.channel_sum.size, 1)

    def add(self, array: Floats, channels: bool) -> None:
        """Add `array` (any shape, finite); `channels`: its last axis has the same length and meaning each time.

        Raises `ValueError` with "NaN" or "infinite" if it is not finite, and adds nothing then.
        """
        if array.size == 0:
            return
        smallest, largest = float(array.min()), float(array.max())
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            raise ValueError("NaN" if math.isnan(smallest) else "infinite")
        self.minimum, self.maximum = min(self.minimum, smallest), max(self.maximum, largest)
        self.count += array.size
        self.histogram.add(array, max(abs(smallest), abs(largest)))
        if channels:
            self._add_channels(array.reshape(-1, array.shape[-1]))

    def merge(self, other: Statistics) -> None:
        """Add what `other` has seen, which keeps its sums and may be modified: the same as adding its arrays."""
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        self.count += other.count
        self.histogram.merge(other.histogram)
        for total in other.channel_sums or ():
            assert other.channel_absmax is not None
            self._add_totals(other.channel_absmax, total)

    def _add_channels(self, rows: Floats) -> None:
        absmax = np.maximum(rows.max(axis=0), -rows.min(axis=0))
        total = rows.sum(axis=0, dtype=np.float64)
        if self.channel_sums is not None:
            self.channel_sums.append(total)
        self._add_totals(absmax, total)

    def _add_totals(self, absmax: Floats, total: npt.NDArray[np.float64]) -> None:
        if self.channel_absmax is None or self.channel_sum is None:
            self.channel_absmax, self.channel_sum = absmax, total.copy()
        else:
            self.channel_absmax = np.maximum(self.channel_absmax, absmax)
            self.channel_sum += total


def calibrated(value: ir.Value) -> Statistics:
    """Return the statistics of `value`. Raises `GraphError` if it was not observed."""
    seen = statistics_of(value)
    if seen is None:
        raise GraphError(f"{value.name} was not calibrated. Put the pass calibrate before this one in the recipe.")
    return seen


def statistics_of(value: ir.Value) -> Statistics | None:
    """Return the statistics that `calibrate` collected for `value` earlier in the recipe; None if not observed."""
    found: Statistics | None = value.meta.get(KEY)
    return found
