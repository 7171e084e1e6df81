"""Engines check their feeds, and bound buffers are read and written in place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.bundle.bundle import Axis, TensorSpec
from intaglio.errors import EngineError, UsageError
from intaglio.runtime import open_engine
from intaglio.runtime.engines.engine import check_arrays
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine

FLOAT = onnx.TensorProto.FLOAT


def ones(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.ones(shape, dtype)


@given(batch=st.integers(0, 7))
def test_any_batch_size_runs(batch: int, adder: Path) -> None:
    with open_engine(adder) as engine:
        outputs = engine.run({"a": ones(batch, 3), "b": ones(batch, 3)})
    np.testing.assert_array_equal(outputs["y"], 2 * ones(batch, 3))


def test_opening_does_not_fuse_into_slower_kernels(adder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: list[list[str]] = []

    class Watched(onnxruntime.InferenceSession):
        def __init__(self, *arguments: Any, disabled_optimizers: list[str], **others: Any):
            left_out.append(disabled_optimizers)
            super().__init__(*arguments, disabled_optimizers=disabled_optimizers, **others)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Watched)
    with open_engine(adder) as engine:
        engine.run({"a": ones(1, 3), "b": ones(1, 3)})
    assert left_out == [["SkipLayerNormFusion"]]


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"a": ones(2, 3)}, "inputs missing: b"),
        ({"a": ones(2, 3), "b": ones(2, 3), "c": ones(1)}, "unknown inputs: c; the model has a, b"),
        ({"a": ones(2, 3, dtype="float64"), "b": ones(2, 3)}, r"got dtype float64, expected float32. .*astype"),
        ({"a": ones(2, 4), "b": ones(2, 4)}, r"got shape \(2, 4\), expected \[batch, 3\]"),
        ({"a": ones(3), "b": ones(3)}, r"got shape \(3,\), expected \[batch, 3\]"),
        ({"a": ones(2, 3), "b": ones(1, 3)}, "batch is 1, but a has 2"),
    ],
)
def test_invalid_feed_is_named(feeds: dict[str, np.ndarray], message: str, adder: Path) -> None:
    with open_engine(adder) as engine, pytest.raises(EngineError, match=message):
        engine.run(feeds)


@given(length=st.integers(0, 1000), maximum=st.integers(1, 900))
def test_axis_limits_are_checked(length: int, maximum: int) -> None:
    spec = TensorSpec("ids", "int64", ("batch", "sequence"))
    feeds = {"ids": np.zeros((1, length), np.int64)}
    axes = {"sequence": Axis(1, maximum)}
    if 1 <= length <= maximum:
        check_arrays((spec,), axes, feeds)
    else:
        with pytest.raises(EngineError, match=f"sequence is {length}, expected 1 to {maximum}"):
            check_arrays((spec,), axes, feeds)


def test_too_long_sequence_is_rejected(tiny_bundle: Path) -> None:
    feeds = {name: np.ones((1, 257), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    with open_engine(tiny_bundle) as engine, pytest.raises(EngineError, match="sequence is 257, expected 1 to 256"):
        engine.run(feeds)


def test_unknown_target_lists_the_known_ones(adder: Path) -> None:
    with pytest.raises(UsageError, match="expected one of ort-cpu, ort-cuda, tensorrt, tensorrt-rtx"):
        open_engine(adder, "tpu")


def test_missing_provider_lists_the_available_ones(adder: Path) -> None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has the CUDA provider")
    with pytest.raises(EngineError, match=r"needs CUDAExecutionProvider, this ONNX Runtime has .*CPUExecutionProvider"):
        open_engine(adder, "ort-cuda")


def test_damaged_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"nonsense")
    with pytest.raises(EngineError, match=r"m\.onnx: not a readable ONNX"):
        open_engine(tmp_path / "m.onnx")
    with pytest.raises(EngineError, match="no such file"):
        open_engine(tmp_path / "none.onnx")


def test_bound_buffers_are_used_in_place(adder: Path) -> None:
    buffers = {"a": ones(2, 3), "b": ones(2, 3), "y": np.zeros((2, 3), np.float32)}
    with OnnxRuntimeEngine(adder) as engine:
        binding = engine.bind(buffers)
        binding.run()
        np.testing.assert_array_equal(buffers["y"], 2 * ones(2, 3))
        buffers["a"][:] = 5
        binding.run()
        np.testing.assert_array_equal(buffers["y"], 6 * ones(2, 3))


def test_buffer_may_be_input_and_output(adder: Path) -> None:
    total = ones(2, 3)
    with OnnxRuntimeEngine(adder) as engine:
        binding = engine.bind({"a": total, "b": ones(2, 3), "y": total})
        for _ in range(3):
            binding.run()
    np.testing.assert_array_equal(total, 4 * ones(2, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros((2, 4), np.float32)}, r"buffer y: got shape \(2, 4\), expected \[batch, 3\]"),
        ({"y": np.zeros((2, 3), np.float64)}, "buffer y: got dtype float64"),
        ({"y": np.zeros((3, 2), np.float32).T}, "not contiguous"),
        ({"a": ones(1, 3)}, "batch is 2, but a has 1"),
        ({"y": np.zeros((3, 3), np.float32)}, "batch is 3, but a has 2"),
    ],
)
def test_invalid_buffer_is_named(change: dict[str, np.ndarray], message: str, adder: Path) -> None:
    buffers = {"a": ones(2, 3), "b": ones(2, 3), "y": np.zeros((2, 3), np.float32)}
    with OnnxRuntimeEngine(adder) as engine, pytest.raises(EngineError, match=message):
        engine.bind({**buffers, **change})


def test_missing_output_buffer_is_named(adder: Path) -> None:
    with OnnxRuntimeEngine(adder) as engine, pytest.raises(EngineError, match="buffers missing: y"):
        engine.bind({"a": ones(2, 3), "b": ones(2, 3)})
