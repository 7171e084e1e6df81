"""Differences between a kernel's outputs and the reference: integers exactly, floats by their bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from intaglio.plugins import OPS
from intaglio.plugins.kernel_check.bounds import difference
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.cases import cases
from intaglio.plugins.kernel_check.inputs import Sizes

SMALL = Sizes(rows=(17,), few_rows=(17,), width=48, inner=40, depth=128, channels=24, hidden=64, vocabulary=200)


def case_of(folder: str) -> tuple[Case, list[Any]]:
    case = next(cases(folder, SMALL))
    return case, OPS[case.operator].reference(case.inputs, case.attributes)


def test_one_wrong_integer_is_found_and_placed() -> None:
    case, expected = case_of("requantize")
    got = [expected[0].copy()]
    assert difference(case, got, expected) is None
    got[0][0, 3, 7] ^= 1
    found = difference(case, got, expected)
    assert found is not None and (found.wrong, found.size, found.first, found.largest) == (1, 680, (0, 3, 7), 1.0)
    assert str(found).startswith("1 of 680 values are wrong, the first at [0, 3, 7]: got ")


def test_second_output_is_compared() -> None:
    case, expected = case_of("int_layer_norm")
    got = [array.copy() for array in expected]
    got[1].flat[-1] += 1
    assert difference(case, got, expected) is not None


@pytest.mark.parametrize("folder", ["lut_matmul", "group_matmul", "csr_matmul"])
def test_float_bound_allows_the_rounding_of_float16_and_little_more(folder: str) -> None:
    case, expected = case_of(folder)
    at = np.unravel_index(np.abs(expected[0]).argmax(), expected[0].shape)
    for factor, wrong in ((1 + 2.0**-11, False), (1.05, True), (-1, True)):
        got = [expected[0].copy()]
        got[0][at] *= np.float16(factor)
        assert (difference(case, got, expected) is not None) == wrong, factor


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_value_that_is_not_finite_is_wrong(value: float) -> None:
    case, expected = case_of("lut_matmul")
    got = [expected[0].copy()]
    got[0][0, 1, 2] = value
    found = difference(case, got, expected)
    assert found is not None and (found.wrong, found.first, found.largest) == (1, (0, 1, 2), np.inf)


def test_empty_outputs_do_not_differ() -> None:
    case, _ = case_of("requantize")
    empty: Any = np.zeros((0, 40), np.int8)
    assert difference(case, [empty], [empty]) is None
