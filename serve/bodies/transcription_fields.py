"""The form of POST /v1/audio/transcriptions and translations, as OpenAI's API defines it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.speech.whisper_options import TRANSCRIBE, TRANSLATE, WhisperOptions
from intaglio.serve.bodies.json_body import converted
from intaglio.serve.responses.errors import invalid

ENDPOINTS = {"/v1/audio/transcriptions": TRANSCRIBE, "/v1/audio/translations": TRANSLATE}
LANGUAGE = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")  # such as en, or pt-BR
UNDETERMINED = "und"  # the language of a recording, where the client named none (ISO 639-2)
WITH_TIMES = ("srt", "verbose_json", "vtt")
SUPPORTED_FORMATS = ("json", "text", "srt", "verbose_json", "vtt")


class TranscriptionRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The fields but the file; any other field is rejected by name."""

    model: str
    language: str = UNDETERMINED  # of an encoder-decoder; a recogniser with a CTC head returns it in verbose_json
    prompt: str = ""  # of an encoder-decoder; recognisers with a CTC head read none
    response_format: str = "json"  # of `SUPPORTED_FORMATS`
    temperature: float = 0.0  # only 0: nothing is sampled
    timestamp_granularities: list[Literal["word", "segment"]] = []
    include: list[Literal["logprobs"]] = []
    chunking_strategy: str = "auto"  # only auto: windows that overlap
    stream: bool = False
    user: str | None = None  # accepted and not used

    @property
    def granularities(self) -> Sequence[str]:
        """The times that verbose_json returns."""
        return self.timestamp_granularities or ["segment"]


def transcription_request(form: Sequence[tuple[str, str]]) -> TranscriptionRequest:
    """The request of a form. Raises `ApiError` that names an invalid or unsupported field.

    Lists are fields that are repeated, named "include[]", "include[0]" or "include".
    """
    given: dict[str, str | list[str]] = {}
    lists = {"timestamp_granularities", "include"}
    for key, value in form:
        name = re.sub(r"\[\d*\]$", "", key)
        if name in lists:
            several = given.setdefault(name, [])
            assert isinstance(several, list)
            several.append(value)
        elif key in given:
            raise invalid(f"{key[:100]}: is there twice. Send it once.", key[:100])
        else:
            given[key] = value
    request = converted(given, TranscriptionRequest, strict=False)
    _check(request)
    return request


def whisper_options(request: TranscriptionRequest, bundle: Bundle, task: str) -> WhisperOptions | None:
    """The options of a recording for the encoder-decoder in `bundle`; None for a recogniser with a CTC head.

    Raises `ApiError` for fields that the model does not have.
    """
    if bundle.manifest.transcriber is None:
        if task != TRANSCRIBE:
            raise invalid(f"model {request.model[:100]}: it translates nothing. Use one of a Whisper.", "model")
        if request.prompt:
            raise invalid("prompt: a recogniser with a CTC head reads none. Leave it out.", "prompt")
        return None
    words = "word" in request.timestamp_granularities
    if words and not bundle.manifest.transcriber.alignment_heads:
        raise invalid(
            "timestamp_granularities: the model has times of segments, not of words. Leave word out.",
            "timestamp_granularities",
        )
    if request.include:
        raise invalid("include: the model returns no logprobs of tokens. Leave it out.", "include")
    language = None if request.language == UNDETERMINED else request.language
    with_times = request.response_format in WITH_TIMES
    return WhisperOptions(language, task, with_times, prompt=request.prompt, word_timestamps=words)


def _check(request: TranscriptionRequest) -> None:
    if request.response_format not in SUPPORTED_FORMATS:
        formats = ", ".join(SUPPORTED_FORMATS)
        raise invalid(
            f"response_format {request.response_format[:100]!r}: expected one of {formats}.", "response_format"
        )
    if not LANGUAGE.fullmatch(request.language):
        raise invalid(f"language {request.language[:100]!r}: expected a code such as en. Leave it out.", "language")
    if request.temperature != 0:
        raise invalid(f"temperature {request.temperature:g}: nothing is sampled. Leave it out.", "temperature")
    if request.chunking_strategy != "auto":
        raise invalid("chunking_strategy: expected auto, windows that overlap. Leave it out.", "chunking_strategy")
    if request.timestamp_granularities and request.response_format != "verbose_json":
        raise invalid(
            "timestamp_granularities: need the response_format verbose_json. Change it, or leave them out.",
            "timestamp_granularities",
        )
    if request.include and request.response_format != "json":
        raise invalid("include: logprobs need the response_format json. Change it, or leave them out.", "include")
    if request.stream and request.response_format not in ("json", "text"):
        raise invalid(f"stream: expected the response_format json, got {request.response_format}.", "stream")
