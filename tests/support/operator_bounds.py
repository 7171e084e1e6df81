"""How far a backend may be from an operator's NumPy reference: nowhere for integers, a bound with its reason for floats."""

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

# Of the sum of the products' magnitudes: float32's rounding of products and sums in any order, of up to 4096 of them.
SUMMATION = 2e-6
# 24 bits of the row's largest |x|, 16 with activation_bits=16, half a step either way; tables of 16 bits likewise.
FIXED_POINT = {32: 2.0**-23, 16: 2.0**-15}


def check_outputs(case: Case, got: Sequence[Array], expected: Sequence[Array]) -> None:
    """Assert that the outputs are those of the reference, within the operator's bound."""
    for actual, want in zip(got, expected, strict=False):
        assert actual.dtype == want.dtype and actual.shape == want.shape
        if case.operator not in WEIGHTS:
            np.testing.assert_array_equal(actual, want)
            continue
        error = np.abs(actual.astype(np.float64) - want.astype(np.float64))
        excess = error - _allowed(case)
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


WEIGHTS: dict[str, Callable[[Case], Array]] = {
    "LutMatMul": lambda case: table_weight(case.inputs[1], case.inputs[2], case.attributes["bits"]).astype(np.float64),
    "CsrMatMul": lambda case: sparse_weight(*case.inputs[1:4], case.inputs[0].shape[-1]),
    "GroupMatMul": lambda case: group_weight(
        case.inputs[1], case.inputs[2], case.inputs[3] if len(case.inputs) > 3 else None,
        case.attributes["bits"], case.attributes["group_size"],
    ),
}
