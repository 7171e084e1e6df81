"""Beam search of Whisper finds the texts of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import served
from sound_files import write_sound
from whisper_texts import LONG, SHORT, WHOLE, library_segments, library_words, spoken, written

from intaglio import run
from intaglio.errors import UsageError
from intaglio.runtime.speech.whisper_options import Fallback

GIVEN = {"language": "en", "task": "transcribe"}


@pytest.mark.proof
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.parametrize(("samples", "times"), [(SHORT, True), (WHOLE, False), (WHOLE, True), (LONG, True)])
def test_beams_equal_transformers(samples: int, times: bool, beams: int, number: int, whisper: Path) -> None:
    found = written(whisper / "bundle", spoken(samples, number), beams=beams, timestamps=times, **GIVEN)
    theirs = library_segments(
        whisper / "checkpoint", spoken(samples, number), return_timestamps=times, num_beams=beams, **GIVEN
    )
    tokens = [each.tokens for each in found.segments]
    wanted = [each["tokens"].tolist() for each in theirs]
    assert tokens and tokens == (wanted[: len(tokens)] if samples < WHOLE else wanted)


@pytest.mark.proof
def test_beams_differ_from_greedy_texts(whisper: Path) -> None:
    greedy = written(whisper / "bundle", spoken(LONG), **GIVEN)
    searched = written(whisper / "bundle", spoken(LONG), beams=5, **GIVEN)
    assert greedy.text != searched.text
    assert searched.segments[0].no_speech_prob == pytest.approx(greedy.segments[0].no_speech_prob, abs=1e-6)


@pytest.mark.proof
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("beams", [1, 3])
def test_mean_log_probabilities_equal_transformers(
    beams: int, number: int, whisper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window fails by the probabilities of its tokens, not by the score of its beam."""
    from transformers import WhisperForConditionalGeneration

    compute, means = WhisperForConditionalGeneration._retrieve_avg_logprobs, list[float]()

    def recorded(*args: Any) -> Any:
        means.append(float(compute(*args)))
        return means[-1]

    monkeypatch.setattr(WhisperForConditionalGeneration, "_retrieve_avg_logprobs", staticmethod(recorded))
    options = {"return_timestamps": True, "temperature": 0.0, "logprob_threshold": -1e9, "num_beams": beams}
    library_segments(whisper / "checkpoint", spoken(LONG, number), **options, **GIVEN)
    found = written(whisper / "bundle", spoken(LONG, number), beams=beams, **GIVEN)
    each = [segment.avg_logprob for segment in found.segments]
    assert [number for place, number in enumerate(each) if number not in each[:place]] == pytest.approx(means, abs=1e-4)


@pytest.mark.proof
def test_words_of_beams_equal_transformers(whisper: Path) -> None:
    options = {"return_timestamps": True, "return_token_timestamps": True, "num_beams": 3}
    theirs = library_segments(whisper / "checkpoint", spoken(WHOLE), **options, **GIVEN)
    found = written(whisper / "bundle", spoken(WHOLE), beams=3, word_timestamps=True, **GIVEN)
    expected = library_words(whisper / "checkpoint", theirs)
    for segment, words in zip(found.segments, expected, strict=True):
        assert segment.words and len(segment.words) == len(words)
        for word, (text, *times) in zip(segment.words, words, strict=True):
            assert word.text == text and [word.start, word.end] == pytest.approx(times, abs=0.0201)


@pytest.mark.proof
def test_failed_windows_are_sampled_in_one_row(whisper: Path) -> None:
    fallback = Fallback((0.0, 50.0), compression_ratio=0.9, log_prob=None, no_speech=None)
    found = written(whisper / "bundle", spoken(LONG), beams=2, fallback=fallback)
    assert {each.temperature for each in found.segments} == {50.0}
    assert found.text == written(whisper / "bundle", spoken(LONG), fallback=fallback).text


@pytest.mark.proof
def test_command_line_has_beams(whisper: Path, tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]) -> None:
    recording = write_sound(tmp_path / "long.wav", spoken(LONG))
    options = "--no-fallback", "--language", "en", "--json"
    code, text, error = intaglio("run", whisper / "bundle", recording, "--beam", 3, *options)
    assert code == 0, error
    expected = written(whisper / "bundle", spoken(LONG), beams=3, language="en")
    assert [each["tokens"] for each in json.loads(text)["segments"]] == [each.tokens for each in expected.segments]
    code, text, error = intaglio("run", whisper / "bundle", recording, "--beam", 0)
    assert (code, text, error.count("\n")) == (2, "", 1) and "beam width 0, expected at least 1" in error
    with pytest.raises(UsageError, match="--language-model weighs the output of a CTC head"):
        list(run(whisper / "bundle", [str(recording)], language_model=tmp_path / "words.arpa"))


@pytest.mark.proof
def test_server_has_beams(whisper: Path, tmp_path: Path) -> None:
    import openai

    recording = write_sound(tmp_path / "long.wav", spoken(LONG))
    with served(f"whisper={whisper / 'bundle'}", "--threads", 1, "--beam", 3) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0, timeout=60)
        found = client.audio.transcriptions.create(
            model="whisper", file=recording, response_format="verbose_json", language="en"
        )
    expected = written(whisper / "bundle", spoken(LONG), beams=3, language="en", fallback=Fallback())
    assert [each.tokens for each in found.segments] == [each.tokens for each in expected.segments]
