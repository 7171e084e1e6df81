"""Whisper after a prompt, and after the text of earlier windows, writes what transformers writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sound_files import write_sound
from tiny_whispers import TOKEN, save_whisper
from whisper_texts import LONG, WHOLE, library, spoken, written

from intaglio import export
from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.speech.whisper.context import Context
from intaglio.runtime.speech.whisper.recognizer import WhisperRecognizer
from intaglio.runtime.speech.whisper.window import Written
from intaglio.runtime.speech.whisper_options import GREEDY, WhisperOptions, parts_of

PROMPT = "Ann, Bäcker"
KEPT = 48 // 2 - 1  # tokens


def prompt_ids(checkpoint: Path, text: str) -> Any:
    import transformers

    tokenizer = transformers.WhisperTokenizer.from_pretrained(checkpoint)
    ids = tokenizer.get_prompt_ids(text, return_tensors="pt")
    assert ids[0] == TOKEN["startofprev"]
    return ids


@pytest.fixture(scope="module")
def texts(whisper: Path) -> Iterator[Callable[..., list[list[int]]]]:
    """What the bundle writes of samples, with options."""
    with WhisperRecognizer(Bundle.open(whisper / "bundle")) as opened:

        def segments(samples: Any, **options: Any) -> list[list[int]]:
            given = WhisperOptions(language="en", task="transcribe", fallback=GREEDY, **options)
            begun = opened.begin([samples], given)
            for _ in begun:
                pass
            return [each.tokens for each in begun.segments]

        yield segments


@pytest.mark.proof
@pytest.mark.parametrize("prompt", ["", PROMPT])
@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("samples", [WHOLE, LONG])
def test_texts_after_prompts_equal_transformers(
    samples: int, previous: bool, prompt: str, whisper: Path, texts: Callable[..., list[list[int]]]
) -> None:
    given: dict[str, Any] = {"language": "en", "task": "transcribe", "return_timestamps": samples > WHOLE}
    if prompt:
        given["prompt_ids"] = prompt_ids(whisper / "checkpoint", prompt)
    theirs = library(whisper / "checkpoint", spoken(samples), **given, condition_on_prev_tokens=previous)
    found = texts(spoken(samples), prompt=prompt, condition_on_prev_tokens=previous)
    assert found and found == theirs
    plain = texts(spoken(samples))
    assert (found != plain) == (bool(prompt) or previous)  # the context matters


@pytest.mark.proof
def test_long_prompts_are_cut_to_their_end(whisper: Path, texts: Callable[..., list[list[int]]]) -> None:
    """As transformers cuts them with `condition_on_prev_tokens`, and OpenAI always."""
    words = "many words before the recording, and a few more of them"
    ids = prompt_ids(whisper / "checkpoint", words)
    assert len(ids) > KEPT + 1
    given = {"language": "en", "task": "transcribe", "return_timestamps": True, "condition_on_prev_tokens": True}
    theirs = library(whisper / "checkpoint", spoken(LONG), prompt_ids=ids, **given)
    assert texts(spoken(LONG), prompt=words, condition_on_prev_tokens=True) == theirs
    assert texts(spoken(WHOLE), prompt=words) == texts(spoken(WHOLE), prompt=words[-KEPT:])
    assert texts(spoken(WHOLE), prompt="word " * 2000)


@pytest.mark.proof
def test_prompts_of_special_tokens_are_named(texts: Callable[..., list[list[int]]]) -> None:
    for text, token in (("a <|en|> b", "<|en|>"), ("<|0.50|>", "<|0.50|>"), ("<|startofprev|>", "<|startofprev|>")):
        with pytest.raises(UsageError) as caught:
            texts(spoken(WHOLE), prompt=text)
        assert str(caught.value).startswith(f"prompt has {token}, a special token") and caught.value.param == "prompt"
    with pytest.raises(UsageError, match="prompt is not valid text"):
        texts(spoken(WHOLE), prompt="\udce4")
    assert texts(spoken(WHOLE), prompt="  \n ") == texts(spoken(WHOLE))


@pytest.mark.proof
def test_checkpoint_decides_on_earlier_text_by_default(whisper: Path, tmp_path: Path) -> None:
    """An older one, too, which does not name the token that begins earlier text."""
    settings = {"condition_on_prev_tokens": True, "prev_sot_token_id": None}
    checkpoint = save_whisper(tmp_path / "checkpoint", **settings)
    exported = export(str(checkpoint), tmp_path / "bundle")
    assert exported.passed and not exported.notes
    given: dict[str, Any] = {"language": "en", "task": "transcribe"}
    by_default = written(tmp_path / "bundle", spoken(LONG), **given)
    assert by_default.segments != written(whisper / "bundle", spoken(LONG), **given).segments
    asked = written(whisper / "bundle", spoken(LONG), condition_on_prev_tokens=True, **given)
    assert by_default.segments == asked.segments


@pytest.mark.proof
def test_models_without_the_token_of_earlier_text_are_named(whisper: Path) -> None:
    bundle = Bundle.open(whisper / "bundle")
    without = msgspec.structs.replace(parts_of(bundle)[1], previous_start=None)
    for changed, options, name in (
        (without, WhisperOptions(prompt="Ann"), "prompt"),
        (without, WhisperOptions(condition_on_prev_tokens=True), "condition_on_prev_tokens"),
        (msgspec.structs.replace(without, condition_on_prev_tokens=True), WhisperOptions(), "condition_on_prev_tokens"),
    ):
        bundle.manifest.transcriber = changed
        with pytest.raises(UsageError, match="the model has no token that begins earlier text") as caught:
            options.check(bundle)
        assert caught.value.param == name
    bundle.manifest.transcriber = changed
    WhisperOptions(condition_on_prev_tokens=False).check(bundle)


def test_uncertain_text_is_no_context() -> None:
    context = Context([1, 2], 9, True, limit=4, first_time=100)
    assert context.tokens() == [9, 1, 2]
    text = Written([3], log_prob=0.0, compression_ratio=1.0, no_speech=0.0, temperature=0.4)
    context.add(text, [[100, 3, 110], [100, 4, 112, 112]])  # the last time is that of the next segment
    assert context.tokens() == [9, 110, 100, 4, 112]
    context.add(Written([3], 0.0, 1.0, 0.0, temperature=0.6), [[5]])
    assert context.tokens() == [9, 1, 2]
    context.add(text, [])
    assert context.tokens() == [9, 100, 4, 112, 5]
    assert Context([], 9, False, limit=4, first_time=100).tokens() == []


@pytest.mark.proof
def test_command_line_has_prompts(whisper: Path, tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]) -> None:
    recording = write_sound(tmp_path / "long.wav", spoken(LONG))

    def printed(*options: str) -> Any:
        code, text, error = intaglio(
            "run", whisper / "bundle", recording, "--no-fallback", "--language", "en", "--json", *options
        )
        assert code == 0, error
        return [each["tokens"] for each in json.loads(text)["segments"]]

    given = {"language": "en", "prompt": PROMPT}
    found = written(whisper / "bundle", spoken(LONG), condition_on_prev_tokens=True, **given)
    assert printed("--prompt", PROMPT, "--condition-on-prev-tokens") == [each.tokens for each in found.segments]
    code, text, error = intaglio("run", whisper / "bundle", recording, "--prompt", "<|en|>")
    assert (code, text, error.count("\n")) == (2, "", 1) and "special token" in error
