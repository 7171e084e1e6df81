"""How far a kernel's outputs may be from the NumPy reference: not at all for integers, a tolerance for floats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from intaglio.plugins import OPS
from intaglio.plugins.csr_matmul.spec import sparse_weight
from intaglio.plugins.group_matmul.spec import group_weight
from intaglio.plugins.kernel_check.case import Array, Case
from intaglio.plugins.lut_matmul.spec import table_weight
from intaglio.plugins.quantize_cache.slots import dequantize

# Relative to the sum of product magnitudes: float32 rounding of products and sums in any order, up to 4096 of them.
SUMMATION = 2e-6
# 24 bits of the row's largest |x|, 16 with activation_bits=16, half a step either way; tables of 16 bits likewise. 8
# are of the largest of each part of x.
FIXED_POINT = {32: 2.0**-23, 16: 2.0**-15, 8: 2.0**-7}
PARTS = {"LutMatMul": 512, "GroupMatMul": 256}
# Likewise for float16, summed in float32: tensor cores truncate where float32 rounds, once per 16
# products, so up to 256 times by 2^-23.
MATRIX_UNIT = 2.0**-15
# float16 keeps 11 bits, and nothing below 2^-24: half a step of the rounded value.
HALF, HALF_SMALLEST = 2.0**-11, 2.0**-25


@dataclass(frozen=True)
class Difference:
    """Values of one output beyond their bound: how many of how many, the first, and the largest difference of all."""

    wrong: int
    size: int
    first: tuple[int, ...]
    got: float
    expected: float
    largest: float

    def __str__(self) -> str:
        """All of it on one line."""
        return (
            f"{self.wrong:,} of {self.size:,} values are wrong, the first at {list(self.first)}: got {self.got:.9g}, "
            f"expected {self.expected:.9g}; the largest difference is {self.largest:.3g}"
        )


def difference(case: Case, got: Sequence[Array], expected: Sequence[Array]) -> Difference | None:
    """The first output that differs from the reference by more than the operator's bound; None without one.

    The outputs have the shapes of the reference. A value that is not finite is wrong, for any bound.
    """
    for actual, want in zip(got, expected, strict=False):
        if "element_bits" in case.attributes:  # bytes, in elements that may be no numbers
            actual, want = actual.view(np.uint8), want.view(np.uint8)
        exact, values = want.astype(np.float64), actual.astype(np.float64)
        with np.errstate(invalid="ignore"):
            errors = np.abs(values - exact)
        allowed = TOLERANCES[case.operator](case, want) if case.operator in TOLERANCES else 0.0
        wrong = ~(errors <= allowed) | ~np.isfinite(values)
        if wrong.any():
            first = tuple(int(index) for index in np.unravel_index(int(wrong.argmax()), wrong.shape))
            largest = float(np.max(np.where(np.isnan(errors), np.inf, errors)))
            return Difference(int(wrong.sum()), wrong.size, first, float(values[first]), float(exact[first]), largest)
    return None


def _of_attention(case: Case, want: Array) -> Array:
    """The largest error of each value of the context `want`: of its sum, and of the exponentials of rounded scores."""
    query, key, value, mask = (np.asarray(each) for each in case.inputs)
    if (bits := case.attributes.get("key_bits", 32)) != 32:
        key = dequantize(key.view(np.uint8), query.shape[-1], bits)
        value = dequantize(value.view(np.uint8), want.shape[-1], case.attributes["value_bits"])
    attributes = OPS["CachedAttention"].complete({"scale": case.attributes["scale"]})
    magnitudes = OPS["CachedAttention"].compute(query, key, np.abs(value), mask, **attributes)[0]
    keys = np.repeat(np.abs(key.astype(np.float64)), query.shape[1] // max(key.shape[1], 1), axis=1)
    scores = np.abs(query.astype(np.float64)) @ keys.swapaxes(-1, -2) * case.attributes["scale"]
    allowed: Array = SUMMATION * (2 + scores.max(-1, keepdims=True, initial=0)) * magnitudes.astype(np.float64)
    return allowed + 1e-30


def _of_packed(case: Case, want: Array) -> Array:
    """The largest error of each value of the product `want`."""
    x, weight = (np.abs(np.asarray(each).astype(np.float64)) for each in case.inputs)
    allowed: Array = SUMMATION * (x @ (weight.T if case.attributes.get("transposed") else weight)) + 1e-30
    return allowed


def _of_low_rank(case: Case, want: Array) -> Array:
    """The largest error of each value of the sum `want`: of both products one after another, and of the addition."""
    inputs = list(map(np.asarray, case.inputs))
    adapter = inputs.pop(4)
    x, first, second, factor, scale, y = (np.abs(each.astype(np.float64)) for each in inputs)
    factors = factor[adapter][:, None, None] * scale
    magnitudes: Array = y + x @ first[adapter].swapaxes(1, 2) * factors @ second[adapter]
    allowed: Array = 2 * SUMMATION * magnitudes + 1e-30
    if want.dtype == np.float16:
        allowed += 2 * (HALF * np.abs(want.astype(np.float64)) + HALF_SMALLEST)  # both outputs are rounded
    return allowed


def _of_product(case: Case, want: Array) -> Array:
    """The largest error of each value of the output `want` of a product."""
    x, _, table = case.inputs[:3]
    assert x is not None and table is not None
    x, weight = np.abs(x.astype(np.float64)), np.abs(WEIGHTS[case.operator](case))
    magnitudes: Array = x @ weight.T  # of the sum of products
    allowed: Array = SUMMATION * (magnitudes + _addend(case, x))
    if case.operator != "CsrMatMul":
        bits = case.attributes.get("activation_bits", 32)
        length = PARTS[case.operator]
        if bits != 8 or length % case.attributes.get("group_size", length):  # parts are whole groups
            length = max(x.shape[-1], 1)
        for first in range(0, x.shape[-1], length):
            part = slice(first, first + length)
            allowed += FIXED_POINT[bits] * x[..., part].max(-1, keepdims=True, initial=0) * weight[:, part].sum(-1)
        if case.operator == "LutMatMul" and bits <= 16:
            allowed += FIXED_POINT[16] * np.abs(table).max(-1) * x.sum(-1, keepdims=True)
        allowed += 1e-30
    if want.dtype != np.float16:
        return allowed
    # Both outputs are rounded to float16; so is each scaled weight, and the float32 part of a weight.
    allowed += MATRIX_UNIT * magnitudes + 2 * (HALF * np.abs(want.astype(np.float64)) + HALF_SMALLEST)
    if case.operator != "CsrMatMul":
        roundings = (case.operator == "GroupMatMul") + (table.dtype == np.float32)
        smallest = HALF_SMALLEST * 2.0 ** case.attributes["bits"] * x.sum(-1, keepdims=True)
        allowed += roundings * (HALF * magnitudes + smallest)
    return allowed


def _addend(case: Case, x: Array) -> Array | float:
    """The magnitude of what is added to a product in float32: y, or the products |x|·|S|ᵀ with sparse values."""
    if case.operator == "LutMatMul" and len(case.inputs) > 3:
        return x @ np.abs(_rows(case.inputs[3:], x.shape[-1])).T
    y = case.inputs[-1] if case.operator == "CsrMatMul" else None
    return 0.0 if y is None else np.abs(y.astype(np.float64))


def _table(case: Case) -> Array:
    _, packed, lut = case.inputs[:3]
    assert packed is not None and lut is not None
    return table_weight(packed, lut, case.attributes["bits"]).astype(np.float64)


def _sparse(case: Case) -> Array:
    x, *sparse, _ = case.inputs
    assert x is not None
    return _rows(sparse, x.shape[-1])


def _rows(sparse: Sequence[Array | None], depth: int) -> Array:
    """The dense matrix of values, columns and row offsets."""
    values, columns, row_offsets = sparse
    assert values is not None and columns is not None and row_offsets is not None
    return sparse_weight(values, columns, row_offsets, depth)


def _groups(case: Case) -> Array:
    _, *constants = OPS["GroupMatMul"].padded(case.inputs)
    return group_weight(constants, case.attributes["bits"], case.attributes["group_size"])


# Products with compressed weights -> their weight as a dense float64 matrix [N, K].
WEIGHTS: dict[str, Callable[[Case], Array]] = {"LutMatMul": _table, "CsrMatMul": _sparse, "GroupMatMul": _groups}
# The operators with a tolerance -> the largest error of each value of an output.
TOLERANCES: dict[str, Callable[[Case, Array], Array]] = {
    **dict.fromkeys(WEIGHTS, _of_product),
    "CachedAttention": _of_attention,
    "LowRankMatMul": _of_low_rank,
    "PackedMatMul": _of_packed,
}
