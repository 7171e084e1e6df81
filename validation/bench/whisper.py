"""Latency and throughput of an encoder-decoder for recordings in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.processes.threads import bounded
from intaglio.runtime.modalities.audio import resampled
from intaglio.runtime.speech.whisper.recognizer import WhisperRecognizer
from intaglio.runtime.speech.whisper_options import GREEDY, WhisperOptions
from intaglio.samples.speech_samples import SAMPLE_RATE, recordings
from intaglio.targets import DEFAULT
from intaglio.validation.bench.load import Load, Round, Timing
from intaglio.validation.bench.taken import refuse_text_options


class WhisperBench:
    """Transcribes recordings of one window, one at a time, greedily and without fallback.

    The time to the first token is that of the front end and the encoder, and the time of a token is the decoder's.
    """

    kind, unit = "recogniser", "seconds of audio"

    def __init__(self, bundle: Bundle, options: Mapping[str, Any], prompts: Sequence[str] | None):
        """Raises `UsageError` for `options` of generation, and for prompts."""
        refuse_text_options(options, prompts, f"{bundle.path} reads recordings and")
        language = next(iter(bundle.manifest.encoder.languages), None) if bundle.manifest.encoder else None
        with bounded(options.get("threads")):
            self._recognizer = WhisperRecognizer(
                bundle, options.get("target", DEFAULT), options=WhisperOptions(language, fallback=GREEDY)
            )
        rate = self._recognizer.sample_rate
        spoken = np.concatenate([resampled(each.samples, SAMPLE_RATE, rate) for each in recordings()])
        size = self._recognizer.transcriber.frames * self._recognizer.transcriber.hop
        spoken = np.resize(spoken, len(spoken) + size)
        self._windows = [spoken[start : start + size] for start in range(0, len(spoken) - size, rate)]

    def run(self, load: Load) -> Round:
        """Run a round; a request is a window."""
        if load.prompt_tokens is not None:
            raise UsageError("--prompt-tokens: the model reads recordings. Leave it out.")
        if load.concurrency > 1:
            raise UsageError(f"--concurrency {load.concurrency}: a Whisper transcribes one recording at a time. Use 1.")
        began = time.perf_counter()
        timings = [self._timing(load.first + number, start) for number, start in load.arrivals(began)]
        return Round(time.perf_counter() - began, timings)

    def _timing(self, number: int, start: float) -> Timing:
        transcription = self._recognizer.begin([self._windows[number % len(self._windows)]])
        tokens = sum(len(segment.tokens) for segments in transcription for segment in segments)
        seconds, decoding = time.perf_counter() - start, transcription.decoding_seconds
        return Timing(
            seconds,
            round(self._recognizer.window_seconds),
            first=seconds - decoding,
            per_token=decoding / tokens if tokens else None,
        )
