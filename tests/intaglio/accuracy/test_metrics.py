"""Errors between arrays with any values that a broken engine can return."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from intaglio.accuracy.metrics import cosine, max_abs

FLOATS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(-1e3, 1e3, width=32))


@given(FLOATS)
def test_error_of_an_array_against_itself_is_zero(array: np.ndarray) -> None:
    assert max_abs(array, array) == 0.0
    assert cosine(array, array) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_error_is_infinite_if_one_array_is_not_finite(bad: float) -> None:
    good, broken = np.ones(3, np.float32), np.array([1, bad, 1], np.float32)
    assert max_abs(broken, good) == np.inf
    assert cosine(broken, good) <= 0.0
    assert max_abs(broken, broken) == 0.0


def test_worst_row_determines_the_error() -> None:
    left = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert cosine(left, np.array([[1.0, 0.0], [0.0, 1.0]])) == 0.0
    assert cosine(np.zeros((1, 2)), np.ones((1, 2))) == 0.0
    assert cosine(np.zeros((1, 2)), np.zeros((1, 2))) == 1.0


def test_empty_arrays_have_no_error() -> None:
    assert max_abs(np.empty((0, 3)), np.empty((0, 3))) == 0.0
    assert cosine(np.empty((0, 3)), np.empty((0, 3))) == 1.0
