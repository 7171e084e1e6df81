"""Recipes give the same bytes with processes as without."""

from __future__ import annotations

from pathlib import Path

import pytest

from intaglio.graph_passes import compress
from intaglio.samples.sentences import sentences

pytestmark = pytest.mark.proof  # each process imports the passes: seconds


@pytest.mark.parametrize("recipe", ["int8-only", "int8-qdq"])
def test_calibrated_encoders_have_the_same_bytes(recipe: str, minilm_bundle: Path, tmp_path: Path) -> None:
    same_bytes(minilm_bundle, recipe, tmp_path)


@pytest.mark.parametrize("recipe", ["gptq", "awq", "lut", "lut-sparse", "mixed"])
def test_compressed_decoders_have_the_same_bytes(recipe: str, tiny_decoder: Path, tmp_path: Path) -> None:
    if recipe == "mixed":  # the rows are short, so that their tables take bits
        recipe = str(tmp_path / "mixed.yaml")
        Path(recipe).write_text("passes: [{mixed: {bits_per_weight: 12}}]")
    same_bytes(tiny_decoder, recipe, tmp_path)


def same_bytes(bundle: Path, recipe: str, folder: Path) -> None:
    (folder / "text.txt").write_text("\n".join(sentences()[:20]))
    for executor in ("inline", "processes:2"):
        compress(bundle, folder / executor, recipe, calibration=folder / "text.txt", executor=executor)
    for name in ("model.onnx", "bundle.json"):
        assert (folder / "processes:2" / name).read_bytes() == (folder / "inline" / name).read_bytes()
