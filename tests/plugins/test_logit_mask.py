"""Bit masks on logits: each instruction set equals the reference and writes nothing beyond the logits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_backends import BACKENDS, use_backend

from intaglio.plugins import ort
from intaglio.plugins.native import logit_mask
from intaglio.plugins.native.logit_mask import reference


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_backend(request.param, monkeypatch, logit_mask, "_kernel")
    return str(request.param)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(0, 200), held=st.integers(0, 30), seed=st.integers(0, 99))
def test_disallowed_logits_become_minus_infinity(backend: str, size: int, held: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(size=size).astype(np.float32)
    octets = random.integers(0, 256, held, np.uint8)
    allowed = np.zeros(max(size, 8 * held), bool)
    allowed[: 8 * held] = np.unpackbits(octets, bitorder="little")
    memory = np.full(size + 9, 7, np.float32)
    found = logit_mask.apply(logits, octets, memory)
    np.testing.assert_array_equal(found, np.where(allowed[:size], logits, -np.inf))
    assert found.base is memory and (memory[size:] == 7).all()


def test_special_values_equal_the_reference(backend: str) -> None:
    logits = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-45, 3.4e38, 1, np.inf, -0.0], np.float32)
    for octets in np.array([[0, 0], [255, 255], [0b01010101, 1], [0b10101010, 2]], np.uint8):
        expected = np.empty_like(logits)
        reference.apply(logits, octets, expected)
        found = logit_mask.apply(logits, octets, np.empty_like(logits))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        real = ~np.isnan(expected)
        np.testing.assert_array_equal(found[real].view(np.int32), expected[real].view(np.int32))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_dtypes_and_strides_are_supported(dtype: type, backend: str) -> None:
    logits = np.arange(40, dtype=dtype)[::2]
    octets = np.array([0b11, 0, 0, 0, 0b1000, 0], np.uint8)[::2]
    found = logit_mask.apply(logits, octets, np.empty(20, dtype))
    assert found.dtype == dtype and np.flatnonzero(np.isfinite(found)).tolist() == [0, 1, 19]


def test_smaller_dtypes_are_not_written_out_of_bounds(backend: str) -> None:
    memory = np.full(40, 7, np.float16)
    found = logit_mask.apply(np.arange(20, dtype=np.float32), np.array([255, 0, 0], np.uint8), memory[:20])
    assert found.tolist() == [*range(8), *[-np.inf] * 12] and (memory[20:] == 7).all()


def test_kernel_matches_the_processor() -> None:
    kernel = logit_mask._kernel()
    if ort.library() is not None:
        assert kernel is not None
        (isa,) = kernel.args  # type: ignore[attr-defined]
        assert isa == len(ort.supported_instruction_sets()) - 1
