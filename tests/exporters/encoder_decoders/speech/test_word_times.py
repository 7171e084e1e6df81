"""The times of words equal those of transformers, which reads them from the attention while it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sound_files import write_sound
from tiny_whispers import TOKEN, save_whisper
from whisper_texts import LONG, SHORT, WHOLE, library_segments, library_words, spoken, written

from intaglio import export, run
from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError, UsageError
from intaglio.runtime.speech.whisper.log_mel import Features
from intaglio.runtime.speech.whisper.recognizer import WhisperRecognizer

POSITION = 0.02  # seconds


@pytest.mark.proof
@pytest.mark.parametrize("prompt", ["", "Ann"])
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("samples", [SHORT, WHOLE, LONG])
def test_words_equal_transformers(samples: int, number: int, prompt: str, whisper: Path) -> None:
    import transformers

    given: dict[str, Any] = {"language": "en", "task": "transcribe"}
    found = written(whisper / "bundle", spoken(samples, number), prompt=prompt, word_timestamps=True, **given)
    if prompt:
        tokenizer = transformers.WhisperTokenizer.from_pretrained(whisper / "checkpoint")
        given["prompt_ids"] = tokenizer.get_prompt_ids(prompt, return_tensors="pt")
    segments = library_segments(
        whisper / "checkpoint", spoken(samples, number), return_timestamps=True, return_token_timestamps=True, **given
    )[: len(found.segments)]
    assert [each.tokens for each in found.segments] == [each["tokens"].tolist() for each in segments]
    expected = library_words(whisper / "checkpoint", segments)
    assert any(expected)
    for segment, words in zip(found.segments, expected, strict=True):
        assert segment.words is not None
        assert [word.text for word in segment.words] == [text for text, _, _ in words]
        times = np.array([(word.start, word.end) for word in segment.words]) - [pair[1:] for pair in words]
        assert np.abs(times).max(initial=0) < POSITION + 1e-6
        assert all(word.start <= word.end <= found.seconds for word in segment.words)


@pytest.mark.proof
@pytest.mark.parametrize("number", [0, 2])
def test_tokens_end_where_they_do_in_transformers(number: int, whisper: Path) -> None:
    given: dict[str, Any] = {"language": "en", "task": "transcribe", "return_timestamps": True}
    segments = library_segments(whisper / "checkpoint", spoken(WHOLE, number), return_token_timestamps=True, **given)
    result = segments[0]["result"]
    before = [TOKEN["startoftranscript"], TOKEN["en"], TOKEN["transcribe"]]
    text = result["sequences"].tolist()[len(before) :]
    if text[-1] == TOKEN["endoftext"]:
        text = text[:-1]
    with WhisperRecognizer(Bundle.open(whisper / "bundle")) as opened:
        features = Features(opened.front_end, opened.transcriber, [spoken(WHOLE, number)])
        opened.session.encode(features.window(0))
        ends = opened.aligner.ends(opened.session, before, text, features.content)
        assert opened.aligner.ends(opened.session, before, text[:1], features.content)[0] == 0
        assert opened.aligner.ends(opened.session, before, [], features.content) == []
    wanted = result["token_timestamps"].numpy()[len(before) : len(before) + len(text)]
    assert np.abs(np.array(ends) * POSITION - wanted).max() < POSITION + 1e-6
    assert len(set(ends)) > 5  # no path along one edge


@pytest.mark.proof
@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("samples", [1, 159, 161, 700, 5 * WHOLE])
def test_clicks_and_silence_have_words_within_the_recording(samples: int, beams: int, whisper: Path) -> None:
    silence = np.zeros(samples, np.float32)
    found = written(whisper / "bundle", silence, beams=beams, language="en", word_timestamps=True, prompt="Ann")
    assert found.finished and found.segments
    words = [word for segment in found.segments for word in segment.words or ()]
    assert words and all(0 <= word.start <= word.end <= round(found.seconds, 3) for word in words)


@pytest.mark.proof
def test_words_need_alignment_heads(whisper: Path, tmp_path: Path) -> None:
    checkpoint = save_whisper(tmp_path / "checkpoint", alignment_heads=None)
    export(str(checkpoint), tmp_path / "bundle")
    with pytest.raises(UsageError, match="word_timestamps need alignment_heads") as caught:
        list(run(tmp_path / "bundle", ["any.wav"], word_timestamps=True))
    assert "\n" not in str(caught.value)
    assert written(tmp_path / "bundle", spoken(WHOLE)).text == written(whisper / "bundle", spoken(WHOLE)).text


@pytest.mark.proof
def test_invalid_alignment_heads_are_named(tmp_path: Path) -> None:
    checkpoint = save_whisper(tmp_path / "checkpoint", alignment_heads=[[0, 1], [1, 0]])
    with pytest.raises(SourceError, match="has head 0 of layer 1, the decoder has 4 heads in 1 layers"):
        export(str(checkpoint), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.proof
def test_command_line_prints_words(
    whisper: Path, tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    recording = write_sound(tmp_path / "long.wav", spoken(LONG))
    options = "--no-fallback", "--language", "en", "--word-timestamps"
    code, text, error = intaglio("run", whisper / "bundle", recording, *options, "--json")
    assert code == 0, error
    words = [word for segment in json.loads(text)["segments"] for word in segment["words"]]
    assert words and set(words[0]) == {"text", "start", "end"}
    code, text, error = intaglio("run", whisper / "bundle", recording, *options, "--task", "translate")
    assert code == 0 and text.count(" to ") == len(text.splitlines()) > 1, error
