"""Error bounds of a backend against an operator's NumPy reference: zero for integers, a tolerance for floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from operator_cases import Case

from intaglio.plugins.csr_matmul.spec import sparse_weight
from intaglio.plugins.group_matmul.spec import group_weight
from intaglio.plugins.lut_matmul.spec import table_weight

Array = npt.NDArray[Any]

# Relative to the sum of product magnitudes: float32 rounding of products and sums in any order, up to 4096 of them.
SUMMATION = 2e-6
# 24 bits of the row's largest |x|, 16 with activation_bits=16, half a step either way; tables of 16 bits likewise.
FIXED_POINT = {32: 2.0**-23, 16: 2.0**-15}
# Likewise for float16, summed in float32: tensor cores truncate where float32 rounds, once per 16
# products, so up to 256 times by 2^-23.
MATRIX_UNIT = 2.0**-15
# float16 keeps 11 bits, and nothing below 2^-24: half a step of the rounded value.
HALF, HALF_SMALLEST = 2.0**-11, 2.0**-25


def check_outputs(case: Case, got: Sequence[Array], expected: Sequence[Array]) -> None:
    """Assert that the outputs equal the reference within the bound of the operator."""
    for actual, want in zip(got, expected, strict=False):
        assert actual.dtype == want.dtype and actual.shape == want.shape
        if case.operator not in WEIGHTS:
            np.testing.assert_array_equal(actual, want)
            continue
        error = np.abs(actual.astype(np.float64) - want.astype(np.float64))
        allowed = _allowed(case)
        if actual.dtype == np.float16:
            allowed = allowed + _allowed_of_float16(case, want)
        excess = error - allowed
        assert not (excess > 0).any(), f"off by {error.max()}, at worst {excess.max()} too much"
        assert np.isfinite(actual).all()


def _allowed(case: Case) -> Array:
    x = np.abs(case.inputs[0].astype(np.float64))
    weight = np.abs(WEIGHTS[case.operator](case))
    allowed = SUMMATION * (x @ weight.T)
    if case.operator == "CsrMatMul":
        return allowed + SUMMATION * np.abs(case.inputs[4])
    step = FIXED_POINT[case.attributes.get("activation_bits", 32)]
    largest = x.max(-1, keepdims=True, initial=0)
    allowed += step * largest * weight.sum(-1)
    if case.operator == "LutMatMul" and step == FIXED_POINT[16]:
        allowed += step * np.abs(case.inputs[2]).max(-1) * x.sum(-1, keepdims=True)
    return allowed + 1e-30


def _allowed_of_float16(case: Case, want: Array) -> Array:
    """Both outputs are rounded to float16; so is each scaled weight, and the float32 part of a weight."""
    x, weight = np.abs(case.inputs[0].astype(np.float64)), np.abs(WEIGHTS[case.operator](case))
    allowed = MATRIX_UNIT * (x @ weight.T) + 2 * (HALF * np.abs(want.astype(np.float64)) + HALF_SMALLEST)
    if case.operator != "CsrMatMul":
        roundings = (case.operator == "GroupMatMul") + (case.inputs[2].dtype == np.float32)
        allowed += roundings * (
            HALF * (x @ weight.T) + HALF_SMALLEST * 2.0 ** case.attributes["bits"] * x.sum(-1, keepdims=True)
        )
    return allowed


WEIGHTS: dict[str, Callable[[Case], Array]] = {
    "LutMatMul": lambda case: table_weight(case.inputs[1], case.inputs[2], case.attributes["bits"]).astype(np.float64),
    "CsrMatMul": lambda case: sparse_weight(*case.inputs[1:4], case.inputs[0].shape[-1]),
    "GroupMatMul": lambda case: group_weight(
        case.inputs[1],
        case.inputs[2],
        case.inputs[3] if len(case.inputs) > 3 else None,
        case.attributes["bits"],
        case.attributes["group_size"],
    ),
}
