"""A served speech recogniser uses the server's decoding options."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
from speech_bundles import RECORDINGS

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.speech.ngram_estimate import estimate
from intaglio.runtime.speech.recognizer import SpeechRecognizer, speech_options
from intaglio.serve.bodies.uploads import Upload
from intaglio.serve.models.model import SpeechModel
from intaglio.serve.opening import open_models
from intaglio.serve.options import ServerOptions


def test_beam_search_equals_run(recogniser: Path, tmp_path: Path) -> None:
    sentences, words, copy = tmp_path / "sentences", tmp_path / "words.arpa", tmp_path / "copy.flac"
    sentences.write_text("he he a\na b he\n")
    estimate(sentences, words, 2)
    recording = min(RECORDINGS.glob("*.flac"))
    with SpeechRecognizer(Bundle.open(recogniser), options=speech_options(5, words)) as alone:
        expected = alone.transcribe(recording)
    with SpeechRecognizer(Bundle.open(recogniser)) as alone:
        assert alone.transcribe(recording).text != expected.text
    shutil.copy(recording, copy)  # an upload is removed
    models = open_models([f"speech={recogniser}"], ServerOptions(), beam=5, language_model=words, threads=1)
    try:
        (model,) = models.recognisers
        assert asyncio.run(transcribed(model, copy)) == expected.text
    finally:
        models.close()


async def transcribed(model: SpeechModel, recording: Path) -> str:
    call = await model.worker.start(Upload(recording, lambda size: None))
    return " ".join([word.text async for words in call.words() for word in words])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 5}, "--beam is for speech recognisers, and none is given. Leave it out."),
        (
            {"language_model": "words.arpa"},
            "--language-model is for recognisers with a CTC head, and none is given. Leave it out.",
        ),
        ({"beam": 0}, "beam width 0, expected at least 1."),
    ],
)
def test_options_without_a_model_are_rejected(tiny_bundle: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_models([tiny_bundle], ServerOptions(), **options)
    assert str(raised.value).startswith(message)
