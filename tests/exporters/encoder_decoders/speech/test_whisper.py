"""Whisper writes what transformers writes: greedy, with and without times, in any language, of any length."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import served
from sound_files import write_sound
from tiny_whispers import SECONDS, SETTINGS, TOKEN, VOCABULARY, save_whisper
from whisper_texts import LONG, RATE, SHORT, WHOLE, library, spoken, written

from intaglio import bench, export, run, validate
from intaglio.errors import BundleError, SourceError, UsageError
from intaglio.exporters.encoder_decoders.speech.front_end import read_log_mel
from intaglio.exporters.encoder_decoders.speech.tokens import text_tokens
from intaglio.graph_passes import compress
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.speech.whisper.window import Written
from intaglio.runtime.speech.whisper_options import GREEDY, Fallback

KINDS, OTHERS = ["whisper"], list[str]()
RECIPES = ("float16", "int8-weights")


@pytest.mark.proof
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(
    ("samples", "options"),
    [
        (SHORT, {"task": "transcribe"}),
        (WHOLE, {"language": "fr", "task": "translate"}),
        (WHOLE, {"language": "de", "task": "transcribe", "timestamps": True}),
        (LONG, {"task": "transcribe"}),
        (LONG, {"language": "en", "task": "translate"}),
    ],
)
def test_tokens_equal_transformers(samples: int, options: dict[str, Any], number: int, whisper: Path) -> None:
    found = written(whisper / "bundle", spoken(samples, number), **options)
    wanted = {name: value for name, value in options.items() if name != "timestamps"}
    times = samples > WHOLE or options.get("timestamps", False)
    tokens = [each.tokens for each in found.segments]
    theirs = library(whisper / "checkpoint", spoken(samples, number), return_timestamps=times, **wanted)
    # of a shorter recording the library also writes the silence that fills the window, if a text ends in a time
    assert tokens and tokens == (theirs[: len(tokens)] if samples < WHOLE else theirs)
    assert len({token for each in found.segments for token in each.tokens}) > 5  # no text of one token
    assert found.seconds == samples / RATE and found.segments[-1].end <= found.seconds


@pytest.mark.proof
def test_type_is_known(whisper: Path, tmp_path: Path, proved: Callable[..., None]) -> None:
    """The text after recipes that change the decoder, of a model with fewer layers there, as distilled ones have."""
    checkpoint = save_whisper(tmp_path / "checkpoint", seed=1, decoder_layers=2)
    assert export(str(checkpoint), tmp_path / "bundle").passed
    found = written(tmp_path / "bundle", spoken(LONG), language="en", task="transcribe")
    assert [each.tokens for each in found.segments] == library(
        checkpoint, spoken(LONG), language="en", task="transcribe", return_timestamps=True
    )
    for recipe in RECIPES:
        compress(whisper / "bundle", tmp_path / recipe, recipe=recipe)
        assert written(tmp_path / recipe, spoken(SHORT), language="en").segments, recipe
    proved(
        "whisper",
        "transcribe",
        "traced",
        tested=["log-mel", "encoder", "logits", "transcript"],
        recipes=list(RECIPES),
        targets=["ort-cpu"],
    )


@pytest.mark.proof
def test_failed_windows_are_written_again(whisper: Path) -> None:
    """The texts of a random model repeat themselves at temperature 0, and are varied at a high one."""
    fallback = Fallback((0.0, 50.0), compression_ratio=0.9, log_prob=None, no_speech=None)
    found = written(whisper / "bundle", spoken(WHOLE), fallback=fallback)
    assert {each.temperature for each in found.segments} == {50.0}
    assert found.text == written(whisper / "bundle", spoken(WHOLE), fallback=fallback).text  # sampled with a seed
    silence = Fallback((0.0,), compression_ratio=None, log_prob=0.0, no_speech=0.0)
    nothing = written(whisper / "bundle", spoken(LONG), fallback=silence)
    assert (nothing.segments, nothing.text, nothing.finished) == ([], "", True)


def test_thresholds_come_from_the_options() -> None:
    text = Written([1], log_prob=-2.0, compression_ratio=1.0, no_speech=0.7, temperature=0.0)
    assert text.is_silence(Fallback()) and not text.failed(Fallback())
    assert text.failed(Fallback(no_speech=None)) and text.failed(Fallback(no_speech=0.8))
    assert not text.failed(Fallback(log_prob=None)) and not text.failed(GREEDY)
    assert text.failed(Fallback(log_prob=None, compression_ratio=0.5))


@pytest.mark.proof
def test_command_line_prints_text_times_and_json(
    whisper: Path, tmp_path: Path, intaglio: Callable[..., tuple[int, str, str]]
) -> None:
    recording = write_sound(tmp_path / "long.wav", spoken(LONG))

    def printed(*options: str) -> str:
        code, text, error = intaglio("run", whisper / "bundle", recording, "--no-fallback", *options)
        assert code == 0, error
        return text

    expected = written(whisper / "bundle", spoken(LONG), language="fr")
    found = json.loads(printed("--language", "fr", "--json"))
    assert (found["transcript"], found["language"], found["task"]) == (expected.text, "fr", "transcribe")
    assert [each["tokens"] for each in found["segments"]] == [each.tokens for each in expected.segments]
    assert printed("--language", "fr", "--timestamps").count(" to ") >= len(expected.segments)
    assert json.loads(printed("--task", "translate", "--json"))["task"] == "translate"
    code, _, error = intaglio("run", whisper / "bundle", "--stream")
    assert code == 2 and "reads windows of many seconds at once" in error
    content = recording.read_bytes()
    for name, damaged in {"text.wav": b"not a recording", "empty.wav": b"", "cut.wav": content[:-1000]}.items():
        (tmp_path / name).write_bytes(damaged)
        code, text, error = intaglio("run", whisper / "bundle", tmp_path / name)
        assert (code, text, error.count("\n")) == (2, "", 1) and name in error


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's translations
def test_server_transcribes_and_translates(whisper: Path, tmp_path: Path) -> None:
    import openai

    recording = write_sound(tmp_path / "long.wav", spoken(LONG))
    with served(f"whisper={whisper / 'bundle'}", "--threads", 1) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0, timeout=60)
        given: dict[str, Any] = {"model": "whisper", "file": recording, "response_format": "verbose_json"}
        found = client.audio.transcriptions.create(**given, language="fr")
        assert (found.language, found.duration, len(found.segments) > 1) == ("fr", LONG / RATE, True)
        assert found.segments[0].temperature >= 0 and found.segments[0].tokens
        english = client.audio.translations.create(**given)
        assert english.text != found.text
        assert client.audio.transcriptions.create(**{**given, "response_format": "text"})
        prompted = client.audio.transcriptions.create(**given, language="fr", prompt="Ann, Bäcker")
        expected = written(whisper / "bundle", spoken(LONG), language="fr", prompt="Ann, Bäcker", fallback=Fallback())
        assert [each.tokens for each in prompted.segments] == [each.tokens for each in expected.segments]
        assert prompted.text != found.text
        timed = client.audio.transcriptions.create(**given, language="fr", timestamp_granularities=["word"])
        assert timed.text == found.text and timed.words
        expected = written(whisper / "bundle", spoken(LONG), language="fr", word_timestamps=True, fallback=Fallback())
        words = [word for each in expected.segments for word in each.words or ()]
        assert [(word.word, word.start, word.end) for word in timed.words] == [
            (word.text, word.start, word.end) for word in words
        ]
        vtt = client.audio.transcriptions.create(**{**given, "response_format": "vtt"})
        assert vtt.startswith("WEBVTT\n\n00:0")
        for changed, message in (
            ({"language": "xx"}, "expected one of de, en, fr"),
            ({"prompt": "<|en|>"}, "prompt has <|en|>, a special token"),
            ({"response_format": "json", "include": ["logprobs"]}, "no logprobs"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                client.audio.transcriptions.create(**{**given, **changed})


@pytest.mark.proof
def test_options_of_other_models_are_named(whisper: Path, tmp_path: Path) -> None:
    bundle, recording = whisper / "bundle", str(write_sound(tmp_path / "short.wav", spoken(SHORT)))
    with pytest.raises(UsageError, match="language 'xx': expected one of de, en, fr"):
        list(run(bundle, [recording], language="xx"))
    with pytest.raises(UsageError, match="task 'sing': expected one of transcribe, translate"):
        list(run(bundle, [recording], task="sing"))
    with pytest.raises(UsageError, match="Add --wer LIST"):
        validate(bundle)
    with pytest.raises(BundleError, match="its task is 'transcribe', not 'text-to-text'"):
        TextGenerator(bundle)
    with pytest.raises(UsageError, match="--concurrency 2: a Whisper transcribes one recording at a time"):
        bench(bundle, concurrency=(2,))
    with pytest.raises(UsageError, match=r"--strategy: .* reads recordings and takes no prompts"):
        bench(bundle, strategy="sample")
    table = tmp_path / "list.tsv"
    table.write_text("short.wav\tsome words\n")
    assert validate(bundle, wer=table).wer is not None


@pytest.mark.proof
def test_bench_measures_encoder_and_decoder(whisper: Path) -> None:
    result = bench(whisper / "bundle", requests=3, rounds=1, threads=1)
    assert (result.kind, result.unit) == ("recogniser", "seconds of audio")
    (row,) = result.rows
    assert row.requests == 3 and row.first_token and row.per_token
    assert row.first_token.median_ms + row.per_token.median_ms < row.median_ms  # texts of several tokens
    assert row.throughput == pytest.approx(SECONDS * row.requests_per_second)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_extractor_type": "Wav2Vec2FeatureExtractor"}, "only WhisperFeatureExtractor"),
        ({"sampling_rate": 8000}, "sampling_rate '8000' is not supported, only 16000"),
        ({"n_fft": 401}, "n_fft is 401, expected an even number"),
        ({"hop_length": 500}, "n_fft is 400, expected an even number from hop_length on"),
        ({"hop_length": 0}, "hop_length is 0"),
        ({"n_fft": 10**9}, "n_fft is 1000000000, expected at most 8192"),
        ({"chunk_length": "30"}, "chunk_length is '30'"),
        ({"feature_size": 10**6}, "feature_size is 1000000, expected at most 512"),
        ({"dither": 0.1}, "dither '0.1' is not supported, only 0"),
        ({"padding_side": "left"}, "padding_side 'left' is not supported"),
        ({"do_normalize": True}, "do_normalize 'True' is not supported"),
    ],
)
def test_invalid_feature_extractors_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    given = {"feature_extractor_type": "WhisperFeatureExtractor", "mel_filters": [[0.1]], "n_samples": 1, **changes}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    with pytest.raises(SourceError) as caught:
        read_log_mel(tmp_path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lang_to_id": None}, "no lang_to_id and task_to_id"),
        ({"lang_to_id": [1]}, "lang_to_id is '[1]'"),
        ({"lang_to_id": {"<|en|>": "x"}}, "lang_to_id is 'x'"),
        ({"task_to_id": {"translate": 5}}, "no lang_to_id and task_to_id"),
        ({"no_timestamps_token_id": None}, "no_timestamps_token_id is 'None'"),
        ({"no_timestamps_token_id": VOCABULARY - 1}, "no_timestamps_token_id + 1"),
        ({"suppress_tokens": [-1]}, "suppress_tokens is '-1'"),
        ({"begin_suppress_tokens": ["a"]}, "begin_suppress_tokens is 'a'"),
        ({"max_initial_timestamp_index": 10**6}, "max_initial_timestamp_index is '1000000'"),
        ({"decoder_start_token_id": True}, "decoder_start_token_id is 'True'"),
        ({"language": "xx"}, "language 'xx' is not in lang_to_id"),
        ({"task": "sing"}, "task 'sing' is not in task_to_id"),
        ({"forced_decoder_ids": [[1]]}, "forced_decoder_ids is '[[1]]'"),
        ({"alignment_heads": [[1]]}, "alignment_heads is '[[1]]'"),
        ({"alignment_heads": [[0, -1]]}, "alignment_heads is '[[0, -1]]'"),
        ({"alignment_heads": {"a": 1}}, "alignment_heads is"),
    ],
)
def test_invalid_tokens_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = {name: value for name, value in {**SETTINGS, **changes}.items() if value is not None}
    with pytest.raises(SourceError) as caught:
        text_tokens(tmp_path, settings, VOCABULARY)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_older_settings_are_defaults(tmp_path: Path) -> None:
    """Forced tokens say what `language` and `task` say now; a model of English alone has no tokens for either."""
    forced = {"forced_decoder_ids": [[1, TOKEN["de"]], [2, TOKEN["translate"]], [3, TOKEN["notimestamps"]]]}
    found = text_tokens(tmp_path, {**SETTINGS, **forced}, VOCABULARY).transcriber
    assert (found["language"], found["task"]) == ("de", "translate")
    detected = text_tokens(
        tmp_path, {**SETTINGS, "forced_decoder_ids": [[1, None], [2, TOKEN["transcribe"]]]}, VOCABULARY
    )
    assert (detected.transcriber["language"], detected.transcriber["task"]) == (None, "transcribe")
    english = text_tokens(tmp_path, {**SETTINGS, "is_multilingual": False}, VOCABULARY)
    assert (english.encoder["languages"], english.transcriber["tasks"]) == ({}, {})
    asking = text_tokens(tmp_path, {**SETTINGS, "num_beams": 5}, VOCABULARY)
    assert asking.notes == ["generation_config.json asks for num_beams 5, which is not applied"]
