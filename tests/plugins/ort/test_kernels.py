"""Every CPU kernel against the NumPy reference of its operator, bit for bit, on every instruction set of this CPU."""

import numpy as np
import pytest
from covering import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_bounds import check_outputs
from operator_cases import MAKERS, Case, cases, longest
from operator_session import operator_session

from intaglio.plugins import OPS, ort
from intaglio.plugins.kernel_check.node_model import feeds

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")


def run(case: Case, constants: bool) -> list[np.ndarray]:
    session = operator_session(case, constants)
    return session.run(None, feeds(case, constants))


def check(case: Case, constants: bool = False) -> None:
    expected = OPS[case.operator].reference(case.inputs, case.attributes)
    check_outputs(case, run(case, constants), expected)


@pytest.mark.parametrize("operator", MAKERS)
@settings(max_examples=examples(16), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kernel_equals_reference(operator, instruction_set, data):
    assert ort.instruction_set() == instruction_set
    check(data.draw(cases(operator)), constants=data.draw(st.booleans()))


@pytest.mark.proof
@pytest.mark.parametrize("operator", MAKERS)
@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kernel_equals_reference_in_100_cases(operator, instruction_set, data):
    assert ort.instruction_set() == instruction_set
    check(data.draw(cases(operator)), constants=data.draw(st.booleans()))


@pytest.mark.parametrize("operator", MAKERS)
def test_kernel_equals_reference_on_rows_of_4096(operator, instruction_set):
    check(longest(operator))


@pytest.mark.parametrize("tokens", [1, 3, 17])
@pytest.mark.parametrize("depth", [900, 70_001])
def test_dense_sparse_rows_and_columns_beyond_16_bits(depth, tokens, instruction_set):
    random = np.random.default_rng(0)
    counts = [0, 1, 800, 5, 64, 65, 0, 128, 3, 7]
    columns = [np.sort(random.choice(depth, count, replace=False)) for count in counts]
    columns[2][-1] = depth - 1
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    x, values, y = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((tokens, depth), offsets[-1], (tokens, len(counts)))
    )
    inputs = (x, values, np.concatenate(columns).astype(np.int32), offsets, y)
    for constants in (False, True):
        check(Case("CsrMatMul", inputs, {}), constants)


def test_every_operator_has_a_kernel():
    assert set(ort.operators()) == set(OPS)
