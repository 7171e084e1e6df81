"""The function bodies against the NumPy references, to the bit, on ONNX Runtime's standard operators."""

import numpy as np
import pytest
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
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_body_equals_reference(operator, data):
    check(data.draw(cases(operator)), constants=data.draw(st.booleans()))


@pytest.mark.parametrize("operator", MAKERS)
def test_body_equals_reference_on_rows_of_4096(operator):
    check(longest(operator))


def test_every_operator_has_cases():
    assert list(MAKERS) == list(OPS)
