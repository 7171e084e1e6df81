"""The function bodies against the NumPy references, bit for bit, on standard operators of ONNX Runtime."""

import math

import numpy as np
import onnx_ir as ir
import pytest
from covering import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_bounds import check_outputs
from operator_cases import MAKERS, Case, cases, longest
from operator_models import run_inlined

from intaglio.plugins import OPS
from intaglio.plugins.function_body import FunctionBody

onnxruntime = pytest.importorskip("onnxruntime")


def run_body(case: Case, constants: bool = False) -> list[np.ndarray]:
    return run_inlined(case, FunctionBody, optimised=False, constants=constants)


def check(case: Case, constants: bool = False) -> None:
    expected = OPS[case.operator].reference(case.inputs, case.attributes)
    check_outputs(case, run_body(case, constants), expected)


@pytest.mark.parametrize("operator", MAKERS)
@settings(max_examples=examples(10), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_body_equals_reference(operator, data):
    check(data.draw(cases(operator)), constants=data.draw(st.booleans()))


@pytest.mark.proof
@pytest.mark.parametrize("operator", MAKERS)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_body_equals_reference_in_100_cases(operator, data):
    check(data.draw(cases(operator)), constants=data.draw(st.booleans()))


@pytest.mark.parametrize("operator", MAKERS)
def test_body_equals_reference_on_rows_of_4096(operator):
    check(longest(operator))


def test_every_operator_has_cases():
    assert list(MAKERS) == list(OPS)


def straddling(shift: int, count: int, below: int = 1, bits: int = 31) -> tuple[np.ndarray, np.ndarray]:
    """x of 24 bits and multipliers of `bits` with x·m = k·2^shift + 2^(shift - 1) - below, just below a half."""
    random, pairs = np.random.default_rng(shift), []
    while len(pairs) < count:
        x = int(random.integers(2**22, 2**23)) * 2 + 1
        multiplier = (2 ** (shift - 1) - below) * pow(x, -1, 2**shift) % 2**shift
        if 2 ** (bits - 1) <= multiplier < 2**bits:
            pairs.append((x, multiplier))
    return tuple(np.array(values, np.int32) for values in zip(*pairs, strict=True))


@pytest.mark.covering(1)
@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("shift", [39, 40, 41])
def test_products_beyond_53_bits_are_shifted_exactly(shift, constants):
    x, multiplier = straddling(shift, 64)
    rounded = np.floor(x.astype(np.float64) * multiplier / 2.0**shift + 0.5)
    case = Case("Requantize", (np.stack([x, -x]), multiplier, np.full(64, shift, np.int32)), {"bits": 16})
    exact = OPS["Requantize"].reference(case.inputs, case.attributes)[0][0]
    assert (rounded != exact).any()  # so float64 alone is wrong here
    check(case, constants)


def test_sums_of_products_beyond_53_bits_are_exact():
    x, multiplier = straddling(39, 64, below=2, bits=30)
    ones = np.ones(64, np.int32)
    rounded = np.floor((x.astype(np.float64) * multiplier + 1) / 2.0**39 + 0.5)
    case = Case("IntAdd", (x[None], ones[None], multiplier, ones, np.array([39], np.int32)), {"bits": 16})
    assert (rounded != OPS["IntAdd"].reference(case.inputs, case.attributes)[0][0]).any()
    check(case, constants=True)


def test_square_roots_are_rounded_down():
    roots = np.arange(2**15, 2**16, dtype=np.int64)
    numbers = np.concatenate([roots**2 + step for step in (-1, 0, 1)])
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape([None]))
    body = FunctionBody(1)
    root = body.integer_sqrt(x)
    root.name, root.shape = "root", ir.Shape([None])
    graph = ir.Graph([x], [root], nodes=body.nodes, opset_imports={"": 23}, name="g")
    session = onnxruntime.InferenceSession(ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString())
    (got,) = session.run(None, {"x": numbers.astype(np.float64)})
    np.testing.assert_array_equal(got, [math.isqrt(number) for number in numbers.tolist()])
