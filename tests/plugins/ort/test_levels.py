"""Levels of GroupMatMul that are no numbers or denormal before a factor, on every instruction set."""

import ml_dtypes
import numpy as np
import pytest
from operator_cases import Case
from operator_session import operator_session

from intaglio.plugins import ort
from intaglio.plugins.bit_packing import pack
from intaglio.plugins.kernel_check.node_model import feeds
from intaglio.plugins.ort.build import instruction_sets

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("name", instruction_sets())
def test_a_level_that_is_no_number_reaches_the_rows_that_use_it(name, used, monkeypatch):
    """As of FP8, whose other levels lie on lines."""
    if name not in ort.supported_instruction_sets():
        pytest.skip(f"this CPU has no {name}")
    monkeypatch.setenv("INTAGLIO_ISA", name)
    levels = (np.arange(256) % 128 / 8 * np.where(np.arange(256) < 128, 1, -1)).astype(np.float32)
    levels[[127, 255]] = np.nan
    codes = np.random.default_rng(0).integers(0, 127, (70, 64))
    if used:
        codes[3, 5], codes[69, 63] = 127, 255
    inputs = (np.ones((2, 64), np.float32), pack(codes, 8), np.full((70, 2), 0.5, np.float32), None, levels)
    case = Case("GroupMatMul", inputs, {"bits": 8, "K": 64, "group_size": 32})
    (y,) = operator_session(case).run(None, feeds(case))
    expected = levels[codes].sum(1) / 2  # exact: halves of eighths
    np.testing.assert_array_equal(y, np.broadcast_to(expected, y.shape))
    assert np.flatnonzero(np.isnan(expected)).tolist() == ([3, 69] if used else [])


@pytest.mark.parametrize("kind", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("name", instruction_sets())
def test_smallest_levels_count_where_a_program_takes_denormals_for_zeros(name, kind, monkeypatch):
    torch = pytest.importorskip("torch")
    if name not in ort.supported_instruction_sets():
        pytest.skip(f"this CPU has no {name}")
    monkeypatch.setenv("INTAGLIO_ISA", name)
    levels = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)
    codes = np.random.default_rng(0).integers(
        0, 8 if kind is ml_dtypes.float8_e4m3fn else 4, (70, 64)
    )  # denormal in FP8
    levels[~np.isfinite(levels)] = 0
    inputs = (np.ones((5, 64), np.float32), pack(codes, 8), np.full((70, 2), 2.0**20, np.float32), None, levels)
    case = Case("GroupMatMul", inputs, {"bits": 8, "K": 64, "group_size": 32})
    assert torch.set_flush_denormal(True)
    try:
        session = operator_session(case)  # with one thread, this one
        together = session.run(None, feeds(case))[0]
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(together, np.broadcast_to(levels[codes].sum(1) * 2**20, together.shape))
