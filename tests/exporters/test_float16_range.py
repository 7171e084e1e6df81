"""Exports in float16: values beyond its range are clamped and counted in every family, never infinite."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import few
from tiny_decoders import FAMILIES, save_decoder
from tiny_encoder_decoders import save_encoder_decoder
from tiny_speech import save_recogniser

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import constants, load
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.writing.weights import Rounding

SAVED: dict[str, Callable[[Path], Path]] = {
    **{family: lambda path, family=family: save_decoder(path, family) for family in FAMILIES},  # type: ignore[misc]
    **{family: lambda path, family=family: save_encoder_decoder(path, family) for family in ("t5", "mt5")},  # type: ignore[misc]
    **{kind: lambda path, kind=kind: save_recogniser(path, kind) for kind in ("conformer-ctc", "squeezeformer")},  # type: ignore[misc]
}


def overflow(checkpoint: Path) -> None:
    """Set the first number of every weight beyond the range of float16."""
    from safetensors.torch import load_file, save_file

    weights = load_file(checkpoint / "model.safetensors")
    for number, tensor in enumerate(weights.values()):
        if tensor.is_floating_point():
            tensor.view(-1)[0] = 1e5 * (-1) ** number
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})


def check_finite(bundle: Path) -> None:
    largest = 0.0
    for path in Bundle.open(bundle).graph_paths:
        for tensor in constants(load(path)):
            if tensor.dtype == ir.DataType.FLOAT16:
                array = tensor.numpy()
                assert np.isfinite(array).all(), tensor.name
                largest = max(largest, float(np.abs(array).max(initial=0)))
    assert largest == 65504


@pytest.mark.parametrize("family", few(SAVED, ["llama", "t5"]))
def test_weights_beyond_float16_are_clamped_in_every_family(family: str, tmp_path: Path) -> None:
    checkpoint = SAVED[family](tmp_path / "checkpoint")
    overflow(checkpoint)
    result = export(checkpoint, tmp_path / "bundle", dtype="float16", check=False)
    check_finite(tmp_path / "bundle")
    assert "numbers beyond ±65504, clamped to it" in result.notes[0]


@pytest.mark.proof
def test_weights_of_traced_encoders_are_clamped(
    one_layer_checkpoint: Path, tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    checkpoint = Path(shutil.copytree(one_layer_checkpoint, tmp_path / "checkpoint"))
    overflow(checkpoint)
    bundle = tmp_path / "bundle"
    code, out, _ = intaglio("export", checkpoint, "-o", bundle, "--dtype", "float16", "--no-check")
    assert code == 0
    assert "numbers beyond ±65504, clamped to it" in out
    check_finite(bundle)


def test_weights_within_range_give_no_note(tmp_path: Path) -> None:
    checkpoint = save_decoder(tmp_path / "checkpoint", "gpt2")
    assert export(checkpoint, tmp_path / "bundle", check=False).notes == []
    result = export(checkpoint, tmp_path / "half", dtype="float16", check=False)
    assert not any("clamped" in note for note in result.notes)


@pytest.mark.parametrize("stored", ["float32", "float64", "bfloat16"])
def test_each_clamped_weight_is_counted_once(stored: str) -> None:
    rounding = Rounding()
    array = np.array([1, -1e30, 7e4, np.inf], ir.DataType[{"bfloat16": "BFLOAT16"}.get(stored, "FLOAT")].numpy())
    array = array.astype(np.float64) if stored == "float64" else array
    for _ in range(3):
        cast = rounding.cast(array, "weight", ir.DataType.FLOAT16)
    assert cast.tolist() == [1, -65504, 65504, np.inf]
    assert rounding.notes() == ["2 numbers beyond ±65504, clamped to it"]


def test_numbers_beyond_float32_are_refused_by_name() -> None:
    with pytest.raises(SourceError, match=r"weight: float64 numbers beyond the range of float32"):
        Rounding().cast(np.array([1e300]), "weight", ir.DataType.FLOAT)


def test_json_contains_the_notes(tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]) -> None:
    checkpoint = save_decoder(tmp_path / "checkpoint", "llama")
    overflow(checkpoint)
    arguments: list[Any] = ["export", checkpoint, "-o", tmp_path / "bundle", "--dtype", "float16", "--no-check"]
    _, out, _ = intaglio(*arguments, "--json")
    assert "clamped to it" in json.loads(out)["notes"][0]
