"""Which product of cuBLAS a kernel's time is compared with."""

from __future__ import annotations

import numpy as np
import pytest

from intaglio.errors import EngineError, MissingExtraError
from intaglio.plugins.cuda import cublas
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.inputs import Sizes, codes, factors, floats, int8s, int32s
from intaglio.validation.gpu_check.worker import KernelRun, product_of

RANDOM = np.random.default_rng(0)


def linear(rows: int, depth: int, columns: int) -> Case:
    inputs = (int8s(RANDOM, 2, rows, depth), int8s(RANDOM, depth, columns), int32s(RANDOM, columns))
    return Case("IntLinear", (*inputs, *factors(RANDOM, columns, 42)), {"bits": 8})


def groups(dtype: str = "float16", rows: int = 3) -> Case:
    scales = floats(RANDOM, 24, 2, dtype=dtype)
    inputs = (floats(RANDOM, rows, 128, dtype=dtype), codes(RANDOM, 24, 128, 4), scales)
    return Case("GroupMatMul", inputs, {"bits": 4, "K": 128, "group_size": 64})


def requantized() -> Case:
    return Case("Requantize", (int32s(RANDOM, 2, 8), *factors(RANDOM, 8, 42)), {"bits": 8})


@pytest.mark.parametrize(
    ("case", "product"),
    [
        (linear(3, 64, 24), ("int8", 6, 64, 24)),
        (groups(), ("float16", 3, 128, 24)),
        (linear(3, 63, 24), None),  # int8 lengths of cuBLAS are multiples of 4
        (linear(3, 64, 23), None),
        (linear(0, 64, 24), None),
        (groups("float32"), None),
        (groups(rows=0), None),
        (requantized(), None),
    ],
)
def test_peer_multiplies_the_same_lengths(case: Case, product: object) -> None:
    assert product_of(case) == product


@pytest.fixture
def run() -> KernelRun:
    return KernelRun("int_linear", "ptx", Sizes())


def test_time_of_cublas_is_divided_by_ours(run: KernelRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(cublas, "product_time", lambda *product: asked.append(product) or 3.0)
    assert run._of_cublas(linear(3, 64, 24), 12.0) == 0.25
    assert run._of_cublas(requantized(), 12.0) is None
    assert asked == [("int8", 6, 64, 24)]


def test_missing_cublas_is_asked_for_once(run: KernelRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def missing(*product: object) -> float:
        asked.append(product)
        raise MissingExtraError("cuBLAS cannot be loaded.")

    monkeypatch.setattr(cublas, "product_time", missing)
    assert [run._of_cublas(linear(3, 64, 24), 12.0) for _ in range(2)] == [None, None]
    assert len(asked) == 1


def test_error_of_cublas_is_no_failure_but_one_of_the_driver_is(run: KernelRun, monkeypatch) -> None:
    errors = iter([cublas.CublasError("status 13"), EngineError("the GPU is lost")])

    def fail(*product: object) -> float:
        raise next(errors)

    monkeypatch.setattr(cublas, "product_time", fail)
    assert run._of_cublas(linear(3, 64, 24), 12.0) is None
    with pytest.raises(EngineError, match="the GPU is lost"):
        run._of_cublas(linear(3, 64, 24), 12.0)
