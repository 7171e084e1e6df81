"""Transcribe recordings, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.speech.recognizer import SpeechOptions
from intaglio.runtime.speech.recordings.opening import open_recognizer
from intaglio.runtime.speech.transcript import TimedToken, Word, real_time_factor
from intaglio.runtime.speech.whisper.recognizer import WhisperTranscription, WrittenSegment
from intaglio.targets import DEFAULT


class Transcribed(msgspec.Struct):
    """The result for one recording, of a recogniser with a CTC head."""

    text: str  # the recording's path, as in the input
    transcript: str
    words: list[Word]
    tokens: list[TimedToken]
    seconds: float  # of audio
    real_time_factor: float  # seconds of work per second of audio


class TranscribedSegments(msgspec.Struct):
    """The result for one recording, of an encoder-decoder."""

    text: str  # the recording's path, as in the input
    transcript: str
    language: str | None  # its code; None of a model of one language
    task: str  # "transcribe" or "translate"
    segments: list[WrittenSegment]
    seconds: float  # of audio
    real_time_factor: float  # seconds of work per second of audio


def run_recordings(
    bundle: Bundle,
    recordings: Iterable[str | Path],
    target: str = DEFAULT,
    options: SpeechOptions | None = None,
    threads: int | None = None,
) -> Iterator[Transcribed | TranscribedSegments]:
    """Transcribe each of `recordings` with `bundle`, in order; see `open_recognizer`."""
    with open_recognizer(bundle, target, threads, options=options) as recognizer:
        for recording in recordings:
            began = time.perf_counter()
            found = recognizer.transcribe(recording)
            factor = round(real_time_factor(time.perf_counter() - began, found.seconds), 4)
            name = str(recording)
            if isinstance(found, WhisperTranscription):
                parts = found.language, found.task, found.segments
                yield TranscribedSegments(name, found.text, *parts, round(found.seconds, 3), factor)
            else:
                yield Transcribed(name, found.text, found.words, found.tokens, found.seconds, factor)
