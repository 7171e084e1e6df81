"""Metrics of outputs, their sums, and their verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.testing import assert_allclose

from intaglio.accuracy.default_bounds import BOUNDS, bounds_for, check_given
from intaglio.bundle.bundle import TensorSpec
from intaglio.errors import EngineError, UsageError
from intaglio.validation.comparison import compare as module
from intaglio.validation.comparison.compare import Array, CompareOutputs, Difference, compare, difference
from intaglio.validation.comparison.runners import Runner

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
FINITE = arrays.arrays(np.float32, SHAPES, elements=st.floats(-1e6, 1e6, width=32))
ANY = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(FINITE, st.integers(0, 2**32 - 1))
def test_errors_of_every_shape_are_measured(expected: Array, seed: int) -> None:
    actual = expected + np.random.default_rng(seed).normal(size=expected.shape).astype(np.float32)
    seen = difference(actual, expected)
    error = np.abs(actual.astype(np.float64) - expected)
    assert seen.count == expected.size
    assert seen.zeros + sum(seen.histogram) == expected.size
    assert seen.max_abs == error.max(initial=0)
    assert_allclose(seen.mean_abs, error.mean() if error.size else 0, rtol=1e-9)
    assert seen.largest == np.abs(expected).max(initial=0)


@given(st.integers(1, 50), st.integers(1, 6), st.integers(1, 20))
def test_chunked_comparison_equals_the_complete_one(rows: int, width: int, chunk: int) -> None:
    random = np.random.default_rng(rows * width)
    actual, expected = random.normal(size=(2, rows, width))
    whole = difference(actual, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        parts = difference(actual, expected)
    assert_allclose(parts.sum_abs, whole.sum_abs, rtol=1e-9)
    assert_allclose(parts.cosine, whole.cosine, rtol=1e-9)
    assert replace(parts, sum_abs=0, cosine=0) == replace(whole, sum_abs=0, cosine=0)


@given(arrays.arrays(np.float32, (3, 4), elements=ANY))
def test_every_array_equals_itself(array: Array) -> None:
    with np.errstate(all="ignore"):
        seen = difference(array, array)
    assert (seen.max_abs, seen.zeros) == (0, 12)
    assert seen.nans == 2 * np.isnan(array).sum()
    assert seen.infinities == 2 * np.isinf(array).sum()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_one_non_finite_value_fails(wrong: float) -> None:
    expected = np.ones((2, 3), np.float32)
    actual = expected.copy()
    actual[1, 1] = wrong
    compared = judge(actual, expected)
    assert not compared
    assert compared.difference.max_abs == np.inf


def test_nan_in_both_arrays_fails() -> None:
    array = np.full((2, 3), np.nan, np.float32)
    assert judge(array, array).broken == ["12 NaN", "cosine -1 is below 0.99999"]


def test_equal_infinities_pass() -> None:
    array = np.array([[1.0, -np.inf, 2.0]], np.float32)
    assert judge(array, array)


def test_error_equal_to_the_bound_passes() -> None:
    expected = np.full((1, 4), 8.0)
    at, above = expected + np.array([0.5, 0, 0, 0]), expected + np.array([0.5000001, 0, 0, 0])
    assert judge(at, expected, max_abs=0.5, cosine=0.9)
    assert judge(above, expected, max_abs=0.5, cosine=0.9).broken == ["largest error 0.5 is above 0.5"]


def test_relative_error_against_zeros_is_zero_or_infinite() -> None:
    zeros = np.zeros((1, 3))
    assert difference(zeros, zeros).relative == 0
    assert difference(zeros + 1e-30, zeros).relative == np.inf


def test_small_error_in_another_direction_fails_by_its_cosine() -> None:
    expected = np.array([[1e-5, 0.0]])
    compared = judge(expected[:, ::-1], expected)
    assert compared.broken == ["cosine 0 is below 0.99999"]


def test_integers_must_be_equal() -> None:
    expected = np.array([3, 4], np.int64)
    assert judge(expected, expected)
    assert judge(np.array([3, 5], np.int64), expected).broken == ["largest error 1 is above 0"]


def test_different_shape_or_kind_of_dtype_is_a_mismatch() -> None:
    ones = np.ones((2, 3), np.float32)
    assert judge(ones, ones.T).broken == ["shape [2, 3], expected [3, 2]"]
    assert judge(ones.astype(np.int8), ones).broken == ["dtype int8, expected float32"]


def test_masked_scores_of_two_dtypes_are_equal() -> None:
    scores = {"s": np.array([[1.0, -65504.0]], np.float16)}, {"s": np.array([[1.0, np.finfo(np.float32).min]])}
    assert CompareOutputs(BOUNDS["float32"], masked_below=-6e4)(*scores)["s"]
    assert not CompareOutputs(BOUNDS["float32"])(*scores)["s"]


def test_comparing_float16_outputs_does_not_overflow() -> None:
    largest = np.full((1, 4), 60000, np.float16)
    seen = difference(-largest, largest)
    assert (seen.max_abs, seen.sum_abs) == (120000, 480000)


def test_errors_outside_the_histogram_count_in_its_end_bins() -> None:
    seen = difference(np.array([1e-30, 1e30]), np.zeros(2))
    assert (seen.histogram[0], seen.histogram[-1], sum(seen.histogram)) == (1, 1, 2)


class Given(Runner):
    """A runner that returns the given arrays, one batch after the other."""

    def __init__(self, name: str, results: Sequence[Mapping[str, Array]]):
        super().__init__(name)
        self._results = iter(results)

    def _inputs(self) -> list[TensorSpec]:
        return [TensorSpec("x", "float32", (1,))]

    def _infer(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return dict(next(self._results))


FEED = {"x": np.zeros(1, np.float32)}


@given(st.lists(arrays.arrays(np.float64, (2, 3), elements=st.floats(0, 1)), min_size=1, max_size=4))
def test_batches_are_merged_and_the_worst_is_named(errors: list[Array]) -> None:
    expected = np.full((2, 3), 2.0)
    actual = Given("actual", [{"y": expected + error} for error in errors])
    found = compare(actual, Given("expected", [{"y": expected}] * len(errors)), [FEED] * len(errors), BOUNDS["float32"])
    total = reduce(add, (difference(expected + error, expected) for error in errors), Difference())
    assert found.outputs["y"].difference == total
    assert errors[found.worst].max() == pytest.approx(total.max_abs, abs=1e-12)


def test_models_without_a_common_output_are_refused() -> None:
    runners = Given("a", [{"y": np.ones(2)}]), Given("b", [{"z": np.ones(2)}])
    with pytest.raises(UsageError, match="a and b have no common output"):
        compare(*runners, [FEED], BOUNDS["float32"])


def test_inputs_unknown_to_one_model_print_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    runners = Given("a", [{"y": np.ones(2)}]), Given("b", [{"y": np.ones(2)}])
    with pytest.raises(EngineError, match="a and b cannot run on the same inputs") as caught:
        compare(*runners, [{}], BOUNDS["float32"])
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_polygraphy_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    runners = Given("a", [{"y": np.full(2, np.nan)}]), Given("b", [{"y": np.zeros(2)}])
    compare(*runners, [FEED], BOUNDS["float32"])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_abs", -1.0), ("max_abs", np.nan), ("relative", np.inf), ("min_cosine", 1.5), ("min_cosine", np.nan)],
)
def test_invalid_bounds_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"bound {name}="):
        check_given({name: value}, [name])


def test_bound_on_an_unmeasured_metric_is_refused() -> None:
    with pytest.raises(UsageError, match="bound 'label_agreement': expected one of max_abs, kl_divergence"):
        check_given({"label_agreement": 0.5}, ["max_abs", "kl_divergence"])


def test_precision_without_bounds_has_no_default() -> None:
    with pytest.raises(UsageError, match="precision 'int3': expected one of float32"):
        bounds_for("int3")


def judge(actual: Array, expected: Array, max_abs: float = 1e-4, cosine: float = 0.99999) -> module.Compared:
    function = CompareOutputs(bounds_for("float32", {"max_abs": max_abs, "min_cosine": cosine}))
    with np.errstate(all="ignore"):
        return function({"y": actual}, {"y": expected})["y"]
