"""LowRankMatMul with constant matrices, of which those that are zero are not read."""

from __future__ import annotations

import numpy as np
import pytest
from operator_session import operator_session

from intaglio.plugins import OPS
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.node_model import feeds

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")

DEPTH, WIDTH, ADAPTERS = 40, 1030, 4  # more channels than a piece of parallel work has


def make_case(adapter: list[int], tokens: int, rank: int, dtype: str) -> Case:
    """Adapter 0 has no matrix, 2 no second one, and 3 only a last number."""
    random = np.random.default_rng(rank)
    shapes = (
        (len(adapter), tokens, DEPTH),
        (ADAPTERS, rank, DEPTH),
        (ADAPTERS, rank, WIDTH),
        (len(adapter), tokens, WIDTH),
    )
    x, first, second, y = (random.normal(size=shape).astype(dtype) for shape in shapes)
    first[0], second[2] = 0, 0
    first[3].flat[:-1], second[3].flat[:-1] = 0, 0
    factor, scale = (random.normal(size=shape).astype(np.float32) for shape in ((ADAPTERS,), (len(adapter), 1, 1)))
    return Case("LowRankMatMul", (x, first, second, factor, np.array(adapter, np.int32), scale, y), {})


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("tokens", "rank"), [(1, 4), (3, 1), (5, 9), (4, 16)])
@pytest.mark.parametrize("constants", [True, False], ids=["constant", "computed"])
def test_each_row_gets_the_change_of_its_own_adapter(
    constants: bool, tokens: int, rank: int, dtype: str, instruction_set: None
) -> None:
    case = make_case([3, 0, 1, 2, 1, 3], tokens, rank, dtype)
    (found,) = operator_session(case, constants).run(None, feeds(case, constants))
    (expected,) = OPS["LowRankMatMul"].reference(case.inputs, {})
    y = case.inputs[-1]
    assert y is not None
    np.testing.assert_array_equal(found[[1, 3]], y[[1, 3]])
    assert np.abs(expected[0, :, -1] - y[0, :, -1]).min() > 1e-3
    allowed = 1e-5 if dtype == "float32" else 1e-3
    np.testing.assert_allclose(found, expected, rtol=allowed, atol=allowed * np.abs(expected).max())


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_number_that_is_none_spoils_only_rows_of_its_adapter(number: float, instruction_set: None) -> None:
    for dtype in ("float32", "float16"):
        case = make_case([0, 1, 2, 3], 3, 5, dtype)
        matrices = case.inputs[1]
        assert matrices is not None
        matrices[1, 2, 7] = number
        (found,) = operator_session(case, True).run(None, feeds(case, True))
        assert not np.isfinite(found[1]).any() and np.isfinite(found[[0, 2, 3]]).all()
