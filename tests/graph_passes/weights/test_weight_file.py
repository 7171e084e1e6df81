"""Weights that a pass has made wait in a file for the graph to be written, not in memory."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from intaglio.compression import compress
from intaglio.graph_passes.weights import weight_file
from intaglio.graph_passes.weights.linear_layers import LayerWriter
from intaglio.graph_passes.weights.weight_file import WeightFile

LEAST = 1024  # bytes in the test of compress; ONNX's checker reads smaller tensors


def files() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("intaglio-weights-*"))


@given(st.lists(arrays.arrays(st.sampled_from(["u1", "i4", "f4"]), arrays.array_shapes(max_dims=2)), max_size=4))
def test_tensors_have_the_arrays_and_the_file_ends_with_the_last(made: list[np.ndarray]) -> None:
    with pytest.MonkeyPatch.context() as patched, tempfile.TemporaryDirectory() as name:
        patched.setattr(tempfile, "tempdir", name)
        patched.setattr(weight_file, "LEAST", 1)
        file = WeightFile()
        tensors = [file.stored(array.T, str(index)) for index, array in enumerate(made)]
        del file
        for tensor, array in zip(tensors, made, strict=True):
            assert isinstance(tensor, ir.ExternalTensor)
            np.testing.assert_array_equal(tensor.numpy(), array.T)
        assert len(files()) == bool(made)
        tensors.clear()
        tensor = None
        assert not files()


def test_small_tensors_stay_in_memory() -> None:
    tensor = WeightFile().stored(np.zeros(weight_file.LEAST - 1, np.uint8), "small")
    assert not isinstance(tensor, ir.ExternalTensor)


@pytest.mark.parametrize("recipe", ["rtn", "gptq", "lut"])
def test_no_compressed_weight_is_in_memory(
    recipe: str, tiny_decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(weight_file, "LEAST", LEAST)
    added: list[ir.Value] = []
    constant = LayerWriter.constant

    def noted(self: LayerWriter, array: np.ndarray, name: str) -> ir.Value:
        added.append(constant(self, array, name))
        return added[-1]

    monkeypatch.setattr(LayerWriter, "constant", noted)
    (tmp_path / "text.txt").write_text("A text that has some words in it.\n" * 40)
    compress(tiny_decoder, tmp_path / "out", recipe, calibration=None if recipe == "rtn" else tmp_path / "text.txt")
    large = [value.const_value for value in added if value.const_value and value.const_value.nbytes >= LEAST]
    assert len(large) >= 6
    assert all(isinstance(tensor, ir.ExternalTensor) for tensor in large)
    large.clear()
    added.clear()
    gc.collect()  # values and nodes refer to each other
    assert not files()
