"""Thresholds from a histogram equal those from the values themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intaglio.graph_passes.calibration.activation_statistics import Statistics
from intaglio.graph_passes.calibration.thresholds import MARGIN, threshold

Floats = npt.NDArray[np.float32]
RANDOM = np.random.default_rng(0)
NORMAL = RANDOM.normal(0, 1, 40_000).astype(np.float32)
SAMPLES: dict[str, Floats] = {
    "normal": NORMAL,
    "uniform": RANDOM.uniform(-3, 3, 40_000).astype(np.float32),
    "laplace": RANDOM.laplace(0, 0.2, 40_000).astype(np.float32),
    "outliers": np.concatenate([NORMAL, np.float32([60, -75, 100])]),
    "one-sided": np.maximum(NORMAL, 0),
}


def statistics(numbers: Floats, **options: Any) -> Statistics:
    made = Statistics(**options)
    made.add(numbers, channels=False)
    return made


def quantised(numbers: Floats, clip: float, bits: int) -> npt.NDArray[np.float64]:
    levels = 2 ** (bits - 1) - 1
    step = clip / levels
    result: npt.NDArray[np.float64] = np.clip(np.rint(numbers.astype(np.float64) / step), -levels, levels) * step
    return result


def squared_error(numbers: Floats, clip: float, bits: int) -> float:
    return float(np.mean((quantised(numbers, clip, bits) - numbers) ** 2))


@given(
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-100, 100, width=32)),
    st.floats(0.5, 100),
)
def test_percentile_is_within_a_bin_of_the_exact_one(numbers: Floats, percentile: float) -> None:
    made = statistics(numbers, method="percentile", percentile=percentile, bins=256)
    found = threshold(made, 8)
    exact = np.percentile(np.abs(numbers), percentile, method="inverted_cdf")
    width = made.histogram.edges[1]
    assert abs(found - exact) <= width
    assert found <= made.absmax


@pytest.mark.parametrize("bits", [2, 4, 6, 8])
@pytest.mark.parametrize("name", SAMPLES)
def test_mse_is_close_to_brute_force(name: str, bits: int) -> None:
    numbers = SAMPLES[name]
    made = statistics(numbers, method="mse")
    found = threshold(made, bits)
    best = min(squared_error(numbers, made.absmax * part / 300, bits) for part in range(1, 301))
    assert squared_error(numbers, found, bits) <= 1.05 * best
    assert found <= made.absmax


def test_mse_clips_more_with_fewer_bits() -> None:
    made = statistics(SAMPLES["laplace"], method="mse")
    found = [threshold(made, bits) for bits in (2, 4, 6, 8)]
    assert found == sorted(found)
    assert found[0] < 0.7 * found[-1]


def test_entropy_clips_an_outlier_and_keeps_the_dense_range() -> None:
    assert 2.5 < threshold(statistics(SAMPLES["outliers"], method="entropy"), 8) < 50
    assert threshold(statistics(SAMPLES["uniform"], method="entropy"), 8) > 2.9
    assert 2 < threshold(statistics(SAMPLES["normal"], method="entropy"), 8) <= np.abs(NORMAL).max()


def test_entropy_threshold_stays_positive_with_mostly_zeros() -> None:
    numbers = np.concatenate([np.zeros(1_000_000, np.float32), np.abs(NORMAL)])
    assert threshold(statistics(numbers, method="entropy"), 8) > 2


@given(
    hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-(2.0**100), 2.0**100, width=32)),
    st.sampled_from(["absmax", "percentile", "mse", "entropy"]),
    st.integers(2, 16),
)
def test_any_values_give_a_valid_threshold(numbers: Floats, method: str, bits: int) -> None:
    made = statistics(numbers, method=method, bins=256)
    found = threshold(made, bits)
    if made.absmax == 0:
        assert found == 0
    elif bits > 8:
        assert found == made.absmax * MARGIN
    else:
        assert 0 < found <= made.absmax
        assert method != "absmax" or found == made.absmax


def test_empty_histogram_gives_zero() -> None:
    assert threshold(Statistics(), 8) == 0
    assert threshold(statistics(np.zeros(9, np.float32)), 16) == 0
