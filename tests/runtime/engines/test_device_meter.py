"""The transfer meter counts the copies of the emulated GPU, and matches the calls of the real libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_ledger import gpu
from device_meter import metered

from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

SIZE = 4 * 2 * 3  # bytes of an array for the adder


def ones() -> np.ndarray:
    return np.ones((2, 3), np.float32)


def test_meter_counts_all_transfers_like_the_emulation(adder: Path) -> None:
    """Copies in rows and in one piece, arrays bound and not bound, and a buffer that is never freed."""
    with gpu() as ledger, metered() as meter:
        with OnnxRuntimeEngine(adder, "ort-cuda") as engine:
            held = engine.memory.zeros((2, 9), "float32")
            engine.memory.copy(held[:, 2:5], ones())
            engine.memory.copy(held[1:, 6:9], held[:1, 2:5])
            engine.bind({"a": ones(), "b": ones(), "y": np.zeros((2, 3), np.float32)}).run()
            found = np.zeros((2, 2), np.float32)
            engine.memory.copy(found, held[:, 1:3])
            np.testing.assert_array_equal(engine.run({"a": ones(), "b": ones()})["y"], 2 * ones())
        kept = DeviceMemory().zeros((5,), "float32")
    assert [(step.up, step.down) for step in meter.steps] == [(3 * SIZE, SIZE + found.nbytes), (2 * SIZE, SIZE)]
    assert list(meter.allocated) == [kept.address]
    assert meter == ledger


def test_meter_counts_successful_cuda_calls(no_cuda_device: None) -> None:
    from cuda.bindings import runtime

    before = runtime.cudaMemcpyAsync
    with metered() as meter:
        assert runtime.cudaMemcpyAsync is not before
        up, array = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, ones()
        for status, *_ in (
            runtime.cudaMalloc(64),
            runtime.cudaMemcpyAsync(64, array.ctypes.data, SIZE, up, 0),
            runtime.cudaMemcpy2DAsync(64, 12, array.ctypes.data, 12, 12, 2, up, 0),
            runtime.cudaFree(64),
        ):
            assert status != runtime.cudaError_t.cudaSuccess, "there is no device"
        assert meter == type(meter)()
    assert runtime.cudaMemcpyAsync is before


def test_meter_counts_onnxruntime_calls(adder: Path) -> None:
    """The CPU provider copies nothing, but the calls and their arguments equal those of the CUDA provider."""
    pytest.importorskip("cuda.bindings.runtime")
    with metered() as meter, OnnxRuntimeEngine(adder) as engine:
        binding = engine.bind({"a": ones(), "b": ones(), "y": np.zeros((2, 3), np.float32)})
        binding.run()
        binding.run()
        engine.run({"a": ones(), "b": ones()})
    assert [(step.up, step.down) for step in meter.steps] == [(2 * SIZE, SIZE), (0, SIZE), (2 * SIZE, SIZE)]
    assert [step.shapes for step in meter.steps] == [{"a": (2, 3), "b": (2, 3)}] * 3
