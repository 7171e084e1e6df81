"""PackedMatMul with constant weights of every type: also bfloat16, which no input of NumPy can have."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from operator_session import operator_session

from intaglio.plugins import OPS
from intaglio.plugins.inlining import inline
from intaglio.plugins.kernel_check.bounds import difference
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.node_model import node_model

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")

TYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def make_case(rows: int, depth: int, columns: int, dtype: Any, transposed: int = 0) -> Case:
    random = np.random.default_rng(rows)
    shape = (columns, depth) if transposed else (depth, columns)
    x, weight = (random.normal(size=each).astype(np.float32) for each in ((rows, depth), shape))
    return Case("PackedMatMul", (x, weight.astype(dtype)), {"transposed": transposed})


def run(case: Case) -> np.ndarray:
    found: np.ndarray = operator_session(case, constants=True).run(None, {"x": case.inputs[0]})[0]
    return found


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "depth", "columns"), [(1, 300, 65), (7, 33, 130), (100, 600, 200), (193, 257, 5)])
def test_every_type_equals_the_reference_and_its_body(
    rows: int, depth: int, columns: int, dtype: Any, transposed: int, instruction_set: None
) -> None:
    case = make_case(rows, depth, columns, dtype, transposed)
    expected = OPS["PackedMatMul"].reference(case.inputs, case.attributes)
    assert difference(case, [run(case)], expected) is None
    model = node_model(case, constants=True)
    inline(model)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    assert difference(case, session.run(None, {"x": case.inputs[0]}), expected) is None


@pytest.mark.parametrize("dtype", TYPES)
def test_row_has_the_same_bits_beside_any_other_rows(dtype: Any, instruction_set: None) -> None:
    x, weight = make_case(200, 700, 70, dtype).inputs
    assert x is not None
    whole = run(Case("PackedMatMul", (x, weight), {}))
    for first, count in ((0, 1), (3, 5), (90, 8), (150, 33)):
        part = run(Case("PackedMatMul", (x[first : first + count], weight), {}))
        np.testing.assert_array_equal(part, whole[first : first + count])


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_that_are_none_reach_their_column_alone(dtype: Any, instruction_set: None) -> None:
    case = make_case(3, 40, 66, dtype)
    weight = case.inputs[1]
    assert weight is not None
    weight[7, 65], weight[8, 3] = np.nan, np.inf
    weight[9, 4] = np.finfo(np.float16).smallest_subnormal if dtype == np.float16 else 1e-40
    found, expected = run(case), OPS["PackedMatMul"].reference(case.inputs, {})[0]
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    assert np.isnan(found[:, 65]).all() and np.isinf(found[:, 3]).all()
    np.testing.assert_allclose(found[:, 4], expected[:, 4], rtol=1e-5, atol=1e-6)


def test_weight_without_numbers_gives_zeros(instruction_set: None) -> None:
    np.testing.assert_array_equal(run(make_case(2, 0, 5, np.float32)), np.zeros((2, 5)))
    assert run(make_case(2, 5, 0, np.float32)).shape == (2, 0)
    assert run(make_case(0, 5, 3, np.float32)).shape == (0, 3)
