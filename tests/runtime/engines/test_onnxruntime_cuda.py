"""Buffers bound to ONNX Runtime on a GPU: `cuda_ledger` stands in for the GPU, ONNX Runtime computes on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from cuda_ledger import gpu

from intaglio.errors import EngineError
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

FLOAT = onnx.TensorProto.FLOAT
SIZE = 4 * 2 * 3  # bytes of an array of these tests


def ones() -> np.ndarray:
    return np.ones((2, 3), np.float32)


def test_provider_that_does_not_start_is_an_error(adder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime itself would run the model on the CPU: its log on standard error is the only sign."""
    with gpu(), pytest.raises(EngineError, match=r"CUDAExecutionProvider did not start: .*onnxruntime-gpu\[cuda"):
        monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda _: ["CPUExecutionProvider"])
        OnnxRuntimeEngine(adder, "ort-cuda")


def test_changes_of_bound_arrays_reach_the_device(adder: Path) -> None:
    with gpu() as ledger, OnnxRuntimeEngine(adder, "ort-cuda") as engine:
        buffers = {"a": ones(), "b": engine.memory.zeros((2, 3), "float32"), "y": np.zeros((2, 3), np.float32)}
        binding = engine.bind(buffers)
        for value in (5, 6, 7):
            buffers["a"][:] = value
            binding.run()
            np.testing.assert_array_equal(buffers["y"], value * ones())
        assert [(step.up, step.down) for step in ledger.steps] == [(SIZE, SIZE)] * 3
    assert not ledger.allocated


def test_device_buffer_is_updated_in_place(adder: Path) -> None:
    """Like a cache: one buffer is input and output, without transfers between runs."""
    with gpu() as ledger, OnnxRuntimeEngine(adder, "ort-cuda") as engine:
        total = engine.memory.zeros((2, 3), "float32")
        step = engine.memory.zeros((2, 3), "float32")
        engine.memory.copy(step, 2 * ones())
        binding = engine.bind({"a": total, "b": step, "y": total})
        for _ in range(3):
            binding.run()
        assert [(each.up, each.down) for each in ledger.steps] == [(SIZE, 0), (0, 0), (0, 0)]
        found = np.zeros((2, 3), np.float32)
        engine.memory.copy(found, total)
        engine.memory.wait()
        np.testing.assert_array_equal(found, 6 * ones())


def test_foreign_device_buffer_is_detected(adder: Path) -> None:
    """The emulation rejects addresses that `cudaMalloc` did not return, and addresses beyond a buffer."""
    with gpu(), OnnxRuntimeEngine(adder, "ort-cuda") as engine:
        held = engine.memory.zeros((64, 3), "float32")
        beyond = held[63:]
        binding = engine.bind(dict.fromkeys("aby", held))
        binding.run()
        engine.memory.release(held)
        with pytest.raises(EngineError, match=r"are not the device's"):
            binding.run()
        with pytest.raises(AssertionError, match=r"are not the device's"):
            engine.bind(dict.fromkeys("aby", beyond))


def test_shared_device_memory_is_freed_by_its_owner(adder: Path) -> None:
    with gpu() as ledger, OnnxRuntimeEngine(adder, "ort-cuda") as owner:
        shared = owner.memory
        assert isinstance(shared, DeviceMemory)
        held = shared.zeros((2, 3), "float32")
        with OnnxRuntimeEngine(adder, "ort-cuda", memory=shared) as other:
            assert other.memory is shared
            other.bind({"a": held, "b": held, "y": held}).run()
        assert list(ledger.allocated) == [held.address]
        owner.bind({"a": held, "b": held, "y": held}).run()
    assert not ledger.allocated
