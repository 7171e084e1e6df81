"""Statistics of data in pieces equal those of the complete data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intaglio.graph_passes.calibration.activation_statistics import LOWEST, Histogram, Statistics

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
arrays = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=7), elements=finite)
BINS = 64


def largest(array: np.ndarray) -> float:
    return float(np.abs(array).max())


@given(st.lists(arrays, min_size=1, max_size=5))
def test_incremental_histogram_equals_the_histogram_of_all_values(pieces: list[np.ndarray]) -> None:
    grown, at_once = Histogram(BINS), Histogram(BINS)
    for piece in pieces:
        grown.add(piece, largest(piece))
    everything = np.concatenate([piece.reshape(-1) for piece in pieces])
    at_once.add(everything, largest(everything))
    assert grown.exponent == at_once.exponent
    np.testing.assert_array_equal(grown.counts, at_once.counts)


@given(arrays)
def test_every_value_is_within_the_edges_of_its_bin(array: np.ndarray) -> None:
    histogram = Histogram(BINS)
    histogram.add(array, largest(array))
    magnitudes = np.abs(array.astype(np.float64)).reshape(-1)
    expected, _ = np.histogram(magnitudes, histogram.edges)
    np.testing.assert_array_equal(histogram.counts, expected)
    assert largest(array) < histogram.edges[-1]
    if largest(array) >= math.ldexp(1, LOWEST):
        assert largest(array) >= histogram.edges[-1] / 2, "more than half of the bins are wasted"


def test_leading_zeros_do_not_widen_the_range() -> None:
    histogram = Histogram(BINS)
    histogram.add(np.zeros(3, np.float32), 0.0)
    histogram.add(np.full(2, 1e-6, np.float32), 1e-6)
    assert histogram.edges[-1] < 2.1e-6
    assert histogram.counts[0] == 3
    assert histogram.counts.sum() == 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data())
def test_statistics_equal_numpy(dtype: type, data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 5))
    rows = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    numbers = st.floats(-1e6, 1e6, width=32)
    pieces = [data.draw(hnp.arrays(dtype, (2, count, width), elements=numbers)) for count in rows]
    statistics = Statistics(bins=BINS)
    for piece in pieces:
        statistics.add(piece, channels=True)
    everything = np.concatenate(pieces, axis=1)
    assert statistics.count == everything.size == statistics.histogram.counts.sum()
    if not everything.size:
        assert statistics.absmax == 0
        assert statistics.channel_absmax is None
        return
    assert (statistics.minimum, statistics.maximum) == (everything.min(), everything.max())
    assert statistics.absmax == np.abs(everything).max()
    assert statistics.channel_absmax is not None
    assert statistics.channel_mean is not None
    np.testing.assert_array_equal(statistics.channel_absmax, np.abs(everything).max(axis=(0, 1)))
    mean = everything.mean(axis=(0, 1), dtype=np.float64)
    np.testing.assert_allclose(statistics.channel_mean, mean, rtol=1e-9, atol=1e-6)


def test_last_axis_of_varying_length_has_no_channel_statistics() -> None:
    statistics = Statistics()
    statistics.add(np.ones((2, 3), np.float32), channels=False)
    statistics.add(np.ones((2, 5), np.float32), channels=False)
    assert statistics.count == 16
    assert statistics.channel_absmax is None
    assert statistics.channel_mean is None


@pytest.mark.parametrize(("bad", "value"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
def test_non_finite_values_are_refused_without_side_effects(bad: float, value: str) -> None:
    statistics = Statistics()
    with pytest.raises(ValueError, match=value):
        statistics.add(np.array([1, bad, 2], np.float32), channels=True)
    assert statistics.count == statistics.histogram.counts.sum() == 0


def test_largest_floats_do_not_overflow_the_histogram() -> None:
    histogram = Histogram(2048)
    top = np.finfo(np.float32).max
    histogram.add(np.array([top, -top, 1, 0], np.float32), float(top))
    assert histogram.counts[-1] == 2
    assert histogram.counts[0] == 2
    assert histogram.edges[-1] == math.ldexp(1, 128)


def test_merging_batches_equals_adding_their_arrays_to_the_bit() -> None:
    random = np.random.default_rng(0)
    arrays = [(random.standard_normal((5, 3)) * 10.0**power).astype(np.float32) for power in (0, -3, 4, 1, -9, 2)]
    whole, merged = Statistics(bins=256), Statistics(bins=256)
    for array in arrays:
        whole.add(array, True)
    for batch in (arrays[:2], arrays[2:5], [], arrays[5:]):
        part = Statistics(bins=256, channel_sums=[])
        for array in batch:
            part.add(array, True)
        merged.merge(part)
    assert (merged.minimum, merged.maximum, merged.count) == (whole.minimum, whole.maximum, whole.count)
    assert merged.histogram.exponent == whole.histogram.exponent
    for name in ("channel_absmax", "channel_sum"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    np.testing.assert_array_equal(merged.histogram.counts, whole.histogram.counts)
