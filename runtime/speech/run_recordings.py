"""Transcribe recordings, one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.speech.recognizer import SpeechOptions, SpeechRecognizer
from intaglio.runtime.speech.transcript import TimedToken, Word, real_time_factor
from intaglio.targets import DEFAULT


class Transcribed(msgspec.Struct):
    """The result for one recording."""

    text: str  # the recording's path, as in the input
    transcript: str
    words: list[Word]
    tokens: list[TimedToken]
    seconds: float  # of audio
    real_time_factor: float  # seconds of work per second of audio


def run_recordings(
    bundle: Bundle,
    recordings: Iterable[str | Path],
    target: str = DEFAULT,
    options: SpeechOptions | None = None,
    threads: int | None = None,
) -> Iterator[Transcribed]:
    """Transcribe each of `recordings` with `bundle`, in order; see `SpeechRecognizer`."""
    with SpeechRecognizer(bundle, target, threads, options=options) as recognizer:
        for recording in recordings:
            began = time.perf_counter()
            found = recognizer.transcribe(recording)
            factor = real_time_factor(time.perf_counter() - began, found.seconds)
            yield Transcribed(str(recording), found.text, found.words, found.tokens, found.seconds, round(factor, 4))
