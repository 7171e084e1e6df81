"""Float function bodies against the NumPy references, within their bounds, in ONNX Runtime on the CPU."""

from collections.abc import Callable

import numpy as np
import pytest
from covering import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_bounds import check_outputs
from operator_cases import MAKERS, Case, cases, longest
from operator_models import run_inlined

from intaglio.plugins import OPS
from intaglio.plugins.float_body import FloatBody
from intaglio.plugins.inlining import inline
from intaglio.plugins.kernel_check.bounds import TOLERANCES
from intaglio.plugins.kernel_check.node_model import node_model

onnxruntime = pytest.importorskip("onnxruntime")

FLOAT16 = 2.0**-11  # relative rounding error of float16
FLOAT32 = 2.0**-22  # the same of float32 after up to four operations
EXP_STEP = 2.0**-10  # a step of the argument of i-exp and of its mantissa, relative to the exponential


def run_body(case: Case) -> list[np.ndarray]:
    return run_inlined(case, FloatBody, optimised=True)


def factor(multiplier, shift, default=1.0):
    """The scale that a multiplier and a shift represent."""
    return default if multiplier is None else np.abs(np.ldexp(multiplier.astype(np.float64), -shift))


def requantized(error, multiplier, shift):
    """The difference after a requantisation of values that differed by `error`."""
    return 1 + error * factor(multiplier, shift)


def one(case: Case) -> list[np.ndarray | float]:
    return [1]


def add(case: Case) -> list[np.ndarray | float]:
    """Two products of any size, whose sum may be small, in float32."""
    x, y, x_multiplier, y_multiplier, shift = case.inputs
    products = np.abs(x * factor(x_multiplier, shift)) + np.abs(y * factor(y_multiplier, shift))
    return [1 + FLOAT32 * products]


def gelu(case: Case) -> list[np.ndarray | float]:
    """The four roundings of the polynomial, then the last scale."""
    _, multiplier, shift = (*case.inputs, None, None)[:3]
    return [1 + 4 * factor(multiplier, shift)]


def softmax(case: Case) -> list[np.ndarray | float]:
    """Three units of an exponential of 32767, and two of its steps."""
    return [1 + 127 * 2 * EXP_STEP + 3 / 32767 / case.attributes["out_scale"]]


def layer_norm(case: Case) -> list[np.ndarray | float]:
    x, weight, bias, multiplier, shift = (*case.inputs, None, None)[:5]
    attributes = OPS[case.operator].complete(case.attributes)
    wide_scale = attributes["wide_scale"] or attributes["out_scale"] / 256
    largest = np.sqrt(x.shape[-1]) if x.size else 0.0
    real = largest * np.abs(weight * attributes["weight_scale"]) + np.abs(bias * attributes["bias_scale"])
    wide = 2 + 2.0**-13 * real / wide_scale
    ratio = attributes["out_scale"] / wide_scale
    return [1 + wide * factor(multiplier, shift, 1 / ratio), wide]


def product(case: Case, bias: int) -> list[np.ndarray | float]:
    a, b = (array.astype(np.float64) for array in case.inputs[:2])
    multiplier, shift, out_multiplier, out_shift = (*case.inputs[2 + bias :], None, None, None, None)[:4]
    error = FLOAT16 * np.abs(a @ b)
    if bias:
        error = error + FLOAT32 * np.abs(case.inputs[2])
    attributes = OPS[case.operator].complete(case.attributes)
    if attributes["bits"] == 32:
        return [error + 0.5]
    if attributes.get("activation"):
        return [1 + (4 + 1.2 * requantized(error, multiplier, shift)) * factor(out_multiplier, out_shift)]
    return [requantized(error, multiplier, shift)]


def attention(case: Case) -> list[np.ndarray | float]:
    """The error of the scores changes each exponential and the sum; weights and sums are rounded to 11 bits."""
    query, key, value, multiplier, shift, _, bias = (*case.inputs, None)[:7]
    heads, scale = case.attributes["num_heads"], case.attributes["scale"]
    if query.size == 0 or key.size == 0:
        return [0]
    depth = query.shape[-1] // heads
    largest = np.abs(query.astype(np.float64)).max() * np.abs(key.astype(np.float64)).max() * depth
    added = 0 if bias is None else FLOAT32 * min(np.abs(bias.astype(np.float64)).max(initial=0), 2**30)
    moved = np.expm1(2 * min((FLOAT16 * largest + added) * scale, 300)) + EXP_STEP
    average = 256 * np.abs(value.astype(np.float64)).max() * (2 * moved + 2 * FLOAT16 + 3 / 32767 * key.shape[1]) + 1
    return [requantized(average, multiplier, shift)]


def rotary(case: Case) -> list[np.ndarray | float]:
    """Two products of up to 29 bits, whose sum may be small, in float32."""
    *_, multiplier, shift = case.inputs
    return [requantized(FLOAT32 * 2.0**29, multiplier, shift)]


BOUNDS: dict[str, Callable[[Case], list[np.ndarray | float]]] = {
    "Requantize": one,
    "IntAdd": add,
    "IntGelu": gelu,
    "IntSoftmax": softmax,
    "IntLayerNorm": layer_norm,
    "IntLinear": lambda case: product(case, bias=1),
    "IntMatMul": lambda case: product(case, bias=0),
    "IntAttention": attention,
    "IntRotary": rotary,
    "QuantizeCache": lambda case: [0],
}


def check(case: Case) -> None:
    expected = OPS[case.operator].reference(case.inputs, case.attributes)
    if case.operator in TOLERANCES:  # they are floating point everywhere
        check_outputs(case, run_body(case), expected)
        return
    bounds = BOUNDS[case.operator](case)
    for got, want, bound in zip(run_body(case), expected, bounds, strict=False):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert (np.abs(got.astype(np.float64) - want) <= bound).all()


@pytest.mark.parametrize("operator", MAKERS)
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_body_stays_within_its_bound(operator, data):
    check(data.draw(cases(operator)))


@pytest.mark.proof
@pytest.mark.parametrize("operator", MAKERS)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_body_stays_within_its_bound_in_100_cases(operator, data):
    check(data.draw(cases(operator)))


@pytest.mark.parametrize("operator", MAKERS)
def test_body_stays_within_its_bound_on_rows_of_4096(operator):
    check(longest(operator))


def test_largest_sums_do_not_overflow():
    x, weight = np.full((1, 130000), -128, np.int8), np.full((130000, 1), -128, np.int8)
    (sums,) = run_body(Case("IntMatMul", (x, weight), {"bits": 32}))
    assert abs(sums[0, 0] / (130000 * 2.0**14) - 1) <= FLOAT16


def test_constant_row_gives_the_bias():
    x, ones = np.full((1, 384), 1234567, np.int32), np.full(384, 2**14, np.int32)
    attributes = {"scale": 1e-3, "weight_scale": 2.0**-14, "bias_scale": 2.0**-16, "out_scale": 2.0**-8}
    (y,) = run_body(Case("IntLayerNorm", (x, ones, ones), attributes))
    assert (y == 64).all()


def test_constant_factors_become_one_product():
    case = longest("Requantize")
    model = node_model(case, constants=True)
    inline(model, body=FloatBody)
    operators = [node.op_type for node in model.graph if node.op_type != "Constant"]
    assert operators == ["Cast", "Mul", "Add", "Floor", "Max", "Min", "Cast"]
