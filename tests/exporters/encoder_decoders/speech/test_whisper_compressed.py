"""Recipes change the encoder and the decoder of a Whisper, one at a time; recordings calibrate the encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sound_files import write_sound
from whisper_texts import WHOLE, Samples, spoken, written

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.graph_passes import compress
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.speech.whisper.log_mel import Features
from intaglio.runtime.speech.whisper_options import parts_of


def first_keys(bundle: Path, samples: Samples) -> Samples:
    """The keys of one window that the encoder computes for the first layer of the decoder."""
    opened = Bundle.open(bundle)
    encoder, transcriber = parts_of(opened)
    with open_engine(opened, graph=transcriber.file) as engine:
        features = Features(engine, transcriber, [samples]).window(0)
    with open_engine(opened, graph=encoder.file) as engine:
        return engine.run({"features": features})["cross_key_0"]


@pytest.mark.proof
def test_recipes_change_the_encoder_or_the_decoder(whisper: Path, tmp_path: Path) -> None:
    bundle = whisper / "bundle"
    for recipe in ("float16", "int8-weights", "rtn", "int8-absmax"):
        first = compress(bundle, tmp_path / f"{recipe}-encoder", recipe, graph="encoder.onnx")
        assert first.untouched == ["model.onnx", "front_end.onnx"]
        second = compress(tmp_path / f"{recipe}-encoder", tmp_path / recipe, recipe)
        assert second.untouched == ["encoder.onnx", "front_end.onnx"]
        opened, halfway = Bundle.open(tmp_path / recipe), Bundle.open(tmp_path / f"{recipe}-encoder")
        assert {record.graph for record in opened.manifest.passes} == {"encoder.onnx", "model.onnx"}
        assert opened.manifest.custom_operators == halfway.manifest.custom_operators  # of the encoder alone, the same
        assert (halfway.path / "model.onnx").read_bytes() == (bundle / "model.onnx").read_bytes()
        assert (opened.path / "encoder.onnx").read_bytes() == (halfway.path / "encoder.onnx").read_bytes()
        assert (opened.path / "encoder.onnx").read_bytes() != (bundle / "encoder.onnx").read_bytes()
        found = written(opened.path, spoken(WHOLE), language="en", word_timestamps=True)
        assert found.segments and found.segments[0].words, recipe
    with pytest.raises(UsageError, match=r"--graph front_end.onnx: recipes change model.onnx or encoder.onnx"):
        compress(bundle, tmp_path / "none", "rtn", graph="front_end.onnx")
    assert not (tmp_path / "none").exists()


@pytest.mark.proof
def test_recordings_calibrate_the_encoder(whisper: Path, tmp_path: Path) -> None:
    bundle, table = whisper / "bundle", tmp_path / "list.tsv"
    for number in range(3):
        write_sound(tmp_path / f"{number}.wav", spoken(WHOLE, number))
    table.write_text("".join(f"{number}.wav\tsome words\n" for number in range(3)))
    before = first_keys(bundle, spoken(WHOLE))
    for recipe, rewrote in (("int8-qdq", "quantize_weights"), ("gptq", "gptq"), ("awq", "awq")):
        result = compress(bundle, tmp_path / recipe, recipe, calibration=table, graph="encoder.onnx")
        assert next(record for record in result.passes if record.name == rewrote).counts
        after = first_keys(tmp_path / recipe, spoken(WHOLE))
        assert 0 < np.abs(after - before).max() < 0.5 * np.abs(before).max(), recipe
        assert written(tmp_path / recipe, spoken(WHOLE), language="en").segments
        with pytest.raises(UsageError, match=r"whose decoder cannot be calibrated.*--graph encoder\.onnx") as caught:
            compress(bundle, tmp_path / "none", recipe, calibration=table)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "none").exists()
