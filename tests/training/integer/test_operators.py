"""The torch operators: the integers of the references bit for bit, and the gradients of the real functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from covering import examples, few
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_cases import MAKERS, Case, cases, longest

from intaglio.plugins import OPS
from intaglio.training.integer.operators import OPERATORS

INTEGER = [operator for operator in MAKERS if OPS[operator].inputs[0].dtypes[0].startswith("int")]


def compute(case: Case) -> list[npt.NDArray[Any]]:
    operator = OPS[case.operator]
    inputs = [None if array is None else torch.from_numpy(array) for array in operator.padded(case.inputs)]
    return [tensor.numpy() for tensor in OPERATORS[case.operator](inputs, operator.complete(case.attributes))]


def check(case: Case) -> None:
    expected = OPS[case.operator].reference(case.inputs, case.attributes)
    for got, want in zip(compute(case), expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_array_equal(got.astype(np.int64), want)


@pytest.mark.parametrize("operator", few(INTEGER, [each for each in INTEGER if each != "IntAttention"]))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_integers_equal_the_reference(operator: str, data: st.DataObject) -> None:
    check(data.draw(cases(operator)))


def test_a_full_residual_stream_wraps_as_the_operator_does() -> None:
    one, unit = np.array([[1]], np.int8), np.array([2**30], np.int32)
    parts = (one, one, np.zeros(1, np.int32), unit, np.array([30], np.int32), *[None] * 5)
    stream, multiple = np.array([[2**31 - 1]], np.int32), np.array([1], np.int32)
    check(Case("IntLinear", (*parts, stream, multiple), {"bits": 16, "activation": ""}))


@pytest.mark.parametrize("operator", INTEGER)
def test_rows_of_4096_are_exact(operator: str) -> None:
    check(longest(operator))


def test_every_integer_operator_can_be_trained() -> None:
    assert list(OPERATORS) == INTEGER
