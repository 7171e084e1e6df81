"""The features of a recording equal those of transformers' feature extractor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tiny_whispers import SECONDS

from intaglio.bundle.bundle import Transcriber
from intaglio.bundle.model_file import save
from intaglio.exporters.encoder_decoders.speech.front_end import LogMel, front_end
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.speech.whisper import log_mel
from intaglio.runtime.speech.whisper.log_mel import Features
from intaglio.samples.speech_samples import recordings

BOUND = 5e-5  # of numbers up to 2; the library's own spectrum is rounded to float32, before a logarithm
TRANSCRIBER = Transcriber("", (), (), 16_000, 160, 400, 100 * SECONDS, 0, 0)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("front-end") / "front_end.onnx"
    save(front_end(LogMel(80, 400, 160, SECONDS)), path)
    with OnnxRuntimeEngine(path) as opened:
        yield opened


@pytest.mark.parametrize("samples", [1, 150, 20_000, 31_950, 32_000, 32_100, 40_001, 70_000])
def test_features_equal_the_library(samples: int, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of recordings that are padded to a window, and of longer ones, which are computed in several runs."""
    import transformers

    monkeypatch.setattr(log_mel, "BLOCK", 70)
    spoken = recordings()[0].samples[8000 : 8000 + samples]
    options = {} if samples <= 16_000 * SECONDS else {"truncation": False, "padding": "longest"}
    extractor = transformers.WhisperFeatureExtractor(chunk_length=SECONDS)
    wanted = extractor(spoken, sampling_rate=16_000, return_tensors="np", **options).input_features[0]
    found = Features(engine, TRANSCRIBER, np.array_split(spoken, 7))
    assert (found.values.shape, found.samples) == (wanted.shape, samples)
    np.testing.assert_allclose(found.values, wanted, rtol=0, atol=BOUND)
    assert found.content == min(found.frames, -(-samples // 160))
    last = found.window(found.frames - 10)
    np.testing.assert_array_equal(last[0, :, :10], found.values[:, -10:])
    assert last.shape[2] == 100 * SECONDS and not last[..., 10:].any()


def test_recording_without_samples_has_no_content(engine: Engine) -> None:
    assert Features(engine, TRANSCRIBER, []).content == 0


def test_silence_has_finite_features(engine: Engine) -> None:
    found = Features(engine, TRANSCRIBER, [np.zeros(9000, np.float32)])
    assert np.isfinite(found.values).all()
