"""Transcriptions through the official client, beside an encoder."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
from served import Served, served
from speech_bundles import RECORDINGS

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.speech.recognizer import SpeechRecognizer
from intaglio.runtime.speech.transcript import Transcript

RECORDING = RECORDINGS / "sentence-1.flac"
MAX_SECONDS = 900
RATE = 16000


@pytest.fixture(scope="module")
def speaking(recogniser: Path, tiny_bundle: Path) -> Iterator[Served]:
    """A server of the small recogniser ("speech") and of an encoder."""
    limits = ("--max-audio-seconds", MAX_SECONDS, "--threads", 1)
    with served(f"speech={recogniser}", f"encoder={tiny_bundle}", *limits) as running:
        yield running


@pytest.fixture(scope="module")
def speaker(speaking: Served) -> Iterator[openai.OpenAI]:
    """The official client."""
    with openai.OpenAI(base_url=f"{speaking.url}/v1", api_key="any", max_retries=0, timeout=60) as opened:
        yield opened


@pytest.fixture(scope="module")
def expected(recogniser: Path) -> Transcript:
    """The recogniser's transcript of `RECORDING`."""
    with SpeechRecognizer(Bundle.open(recogniser)) as opened:
        return opened.transcribe(RECORDING)


def noise(seconds: int) -> bytes:
    """A WAV file with noise that changes."""
    samples = np.random.default_rng(1).integers(-(2**12), 2**12, seconds * RATE, np.int16)
    file = BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def transcribe(client: openai.OpenAI, **options: Any) -> Any:
    return client.audio.transcriptions.create(**{"model": "speech", "file": RECORDING, **options})


def test_transcript_equals_the_recognisers(speaker: openai.OpenAI, expected: Transcript) -> None:
    found = transcribe(speaker)
    assert len(expected.words) > 10
    assert found.text == expected.text
    assert (found.usage.type, found.usage.seconds) == ("duration", expected.seconds)
    assert found.logprobs is None


def test_neutral_field_values_are_accepted(speaker: openai.OpenAI, expected: Transcript) -> None:
    options = {"language": "en", "temperature": 0, "prompt": "", "chunking_strategy": "auto", "stream": False}
    assert transcribe(speaker, **options).text == expected.text


def test_text_and_subtitle_formats(speaker: openai.OpenAI, expected: Transcript) -> None:
    assert transcribe(speaker, response_format="text") == f"{expected.text}\n"
    srt, vtt = transcribe(speaker, response_format="srt"), transcribe(speaker, response_format="vtt")
    cues = re.findall(r"^\d+\n[\d:,]+ --> [\d:,]+\n(.+)\n\n", srt, re.MULTILINE)
    assert " ".join(cues) == expected.text
    assert vtt == "WEBVTT\n\n" + re.sub(r"(\d),(\d)", r"\1.\2", re.sub(r"^\d+\n", "", srt, flags=re.MULTILINE))


def test_words_and_segments_have_times(speaker: openai.OpenAI, expected: Transcript, recogniser: Path) -> None:
    granularities = ["word", "segment"]
    found = transcribe(speaker, response_format="verbose_json", timestamp_granularities=granularities, language="en")
    assert (found.language, found.duration, found.text) == ("en", expected.seconds, expected.text)
    assert [(word.word, word.start, word.end) for word in found.words] == [
        (word.text, word.start, word.end) for word in expected.words
    ]
    assert " ".join(segment.text for segment in found.segments) == expected.text
    assert [segment.id for segment in found.segments] == list(range(len(found.segments)))
    tokens = json.loads((recogniser / "vocabulary.json").read_text())["tokens"]
    written = [tokens[token] for segment in found.segments for token in segment.tokens]
    assert written == [token.text for token in expected.tokens]
    assert all(-20 < segment.avg_logprob < 0 for segment in found.segments)


def test_only_requested_granularities_are_returned(speaker: openai.OpenAI) -> None:
    plain = transcribe(speaker, response_format="verbose_json")
    words = transcribe(speaker, response_format="verbose_json", timestamp_granularities=["word"])
    assert (plain.words, words.segments, plain.language) == (None, None, "und")
    assert plain.segments and words.words


def test_tokens_have_logprobs(speaker: openai.OpenAI, expected: Transcript) -> None:
    found = transcribe(speaker, include=["logprobs"]).logprobs
    assert [each.token for each in found] == [token.text for token in expected.tokens]
    assert [np.exp(each.logprob) for each in found] == pytest.approx(
        [token.confidence for token in expected.tokens], abs=2e-4
    )
    assert bytes(map(int, found[0].bytes)).decode() == found[0].token


def test_stream_returns_words_of_each_window(speaker: openai.OpenAI) -> None:
    long = noise(70)
    whole = transcribe(speaker, file=long).text
    events = list(transcribe(speaker, file=long, stream=True))
    deltas = [event.delta for event in events if event.type == "transcript.text.delta"]
    assert len(deltas) >= 3  # windows
    assert "".join(deltas) == whole == events[-1].text
    assert events[-1].type == "transcript.text.done"


@pytest.mark.parametrize(
    ("options", "param", "expected_error"),
    [
        ({"prompt": "Names: Ann"}, "prompt", "reads none"),
        ({"temperature": 0.4}, "temperature", "nothing is sampled"),
        ({"response_format": "diarized_json"}, "response_format", "expected one of json, text, srt"),
        ({"language": "../en"}, "language", "expected a code"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities", "need the response_format verbose_json"),
        ({"timestamp_granularities": ["x"], "response_format": "verbose_json"}, "timestamp_granularities[0]", "'x'"),
        ({"include": ["logprobs"], "response_format": "text"}, "include", "need the response_format json"),
        ({"stream": True, "response_format": "srt"}, "stream", "expected the response_format json"),
        ({"chunking_strategy": {"type": "server_vad"}}, "chunking_strategy[type]", "not supported"),
        ({"extra_body": {"keywords": ["Ann"]}}, "keywords[]", "not supported"),
        ({"extra_body": {"unheard_of": 1}}, "unheard_of", "not supported"),
        ({"file": b""}, "file", "is empty"),
        ({"file": b"\0" * 1000}, "file", "not a WAV, FLAC or OGG recording"),
        ({"file": noise(1)[:-1000]}, "file", "truncated"),
        ({"file": noise(MAX_SECONDS + 1)}, "file", "expected at most 900"),
        ({"model": "encoder"}, "model", "computes embed, it transcribes no recordings"),
    ],
)
def test_unsupported_fields_are_rejected_by_name(
    speaker: openai.OpenAI, options: dict[str, Any], param: str, expected_error: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        transcribe(speaker, **options)
    assert refused.value.type == "invalid_request_error"
    assert refused.value.param == param
    assert expected_error in refused.value.message
    assert "\n" not in refused.value.message
    assert "/" not in refused.value.message.replace("../en", "")  # no path of the server


def test_damaged_recording_ends_its_stream_with_the_error(speaker: openai.OpenAI) -> None:
    samples = np.zeros(70 * RATE, np.float32)
    samples[-1] = np.inf
    file = BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="FLOAT")
    with pytest.raises(openai.APIError, match="NaN or infinite samples at 70"):
        list(transcribe(speaker, file=file.getvalue(), stream=True))
    with pytest.raises(openai.BadRequestError, match="NaN or infinite samples at 70"):
        transcribe(speaker, file=file.getvalue())


def test_other_endpoints_name_the_models_task(speaker: openai.OpenAI) -> None:
    assert [model.id for model in speaker.models.list()] == ["speech", "encoder"]
    with pytest.raises(openai.BadRequestError, match="transcribes recordings at /v1/audio/transcriptions"):
        speaker.embeddings.create(model="speech", input="a")
    with pytest.raises(openai.BadRequestError, match="transcribes recordings at /v1/audio/transcriptions"):
        speaker.completions.create(model="speech", prompt="a")
    assert speaker.embeddings.create(model="encoder", input="a").data
    with pytest.raises(openai.NotFoundError, match="This server has: speech, encoder"):
        transcribe(speaker, model="other")


def test_metrics_and_log_have_audio_seconds(speaking: Served, speaker: openai.OpenAI, expected: Transcript) -> None:
    before = speaking.metric("intaglio:audio_seconds_total"), speaking.metric("intaglio:real_time_factor_count")
    transcribe(speaker, extra_headers={"X-Request-Id": "counted"})
    after = speaking.metric("intaglio:audio_seconds_total"), speaking.metric("intaglio:real_time_factor_count")
    assert after == (pytest.approx(before[0] + expected.seconds), before[1] + 1)
    speaking.wait_for("vllm:num_requests_running", 0)
    line = next(line for line in speaking.log if "request_id=counted" in line)
    assert f"audio_seconds={expected.seconds}" in line
    assert re.search(r"real_time_factor=0\.\d+", line)


def form(recording: bytes, stream: bool) -> bytes:
    fields = [("model", b"speech"), ("stream", b"true" if stream else b"false"), ("file", recording)]
    parts = [
        b'--x\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + value + b"\r\n"
        for name, value in fields
    ]
    body = b"".join(parts) + b"--x--\r\n"
    head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: multipart/form-data; boundary=x\r\n\r\n".encode() + body


@pytest.mark.parametrize("stream", [False, True])
def test_client_disconnect_counts_as_aborted(speaking: Served, stream: bool) -> None:
    aborted = 'vllm:request_success_total{finished_reason="abort",model_name="speech"}'
    before, audio = speaking.metric(aborted), speaking.metric("intaglio:audio_seconds_total")
    with speaking.connect() as connection:
        connection.sendall(form(noise(MAX_SECONDS), stream))
        speaking.wait_for("vllm:num_requests_running", 1)
        connection.shutdown(socket.SHUT_RDWR)
    speaking.wait_for("vllm:num_requests_running", 0)
    speaking.wait_for(aborted, before + 1)
    assert speaking.metric("intaglio:audio_seconds_total") == audio


def test_server_without_recognisers_reads_no_uploads(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model of this server transcribes recordings"):
        transcribe(client)
