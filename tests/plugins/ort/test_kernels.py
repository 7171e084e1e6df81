"""Every CPU kernel against the NumPy reference of its operator, bit for bit, on every instruction set of this CPU."""

import numpy as np
import pytest
from covering import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_bounds import check_outputs
from operator_cases import MAKERS, Case, cases, indices, longest, sparse_rows
from operator_session import operator_session

from intaglio.plugins import OPS, ort
from intaglio.plugins.kernel_check.node_model import feeds

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")

COUNTS = [0, 1, 800, 5, 64, 65, 0, 128, 3, 7]  # values in each row of a sparse matrix


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
    values, columns, offsets = sparse_rows(random, COUNTS, depth)
    columns[800] = depth - 1  # the last of the long row
    x, y = (random.standard_normal((tokens, width)).astype(np.float32) for width in (depth, len(COUNTS)))
    for constants in (False, True):
        check(Case("CsrMatMul", (x, values, columns, offsets, y), {}), constants)


@pytest.mark.parametrize("tokens", [1, 3, 17])
@pytest.mark.parametrize("activation_bits", [8, 16, 32])
def test_sparse_values_of_a_table_equal_a_product_of_their_own(activation_bits, tokens, instruction_set):
    random = np.random.default_rng(0)
    sparse = sparse_rows(random, COUNTS, 928)
    x, packed = random.standard_normal((tokens, 928)).astype(np.float32), indices(random, len(COUNTS), 928, 3)
    dense = (x, packed, random.standard_normal((len(COUNTS), 8)).astype(np.float32))
    attributes = {"bits": 3, "K": 928, "activation_bits": activation_bits}
    for constants in (False, True):
        (y,) = run(Case("LutMatMul", dense, attributes), constants)
        (pair,) = run(Case("CsrMatMul", (x, *sparse, y), {}), constants)
        (one,) = run(Case("LutMatMul", (*dense, *sparse), attributes), constants)
        assert not np.array_equal(one, y)
        np.testing.assert_array_equal(one, pair)


def test_every_operator_has_a_kernel():
    assert set(ort.operators()) == set(OPS)
