"""Latency and throughput of a speech recogniser in this process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.processes.threads import bounded
from intaglio.runtime.modalities.audio import resampled
from intaglio.runtime.speech.recognizer import SpeechRecognizer
from intaglio.samples.speech_samples import SAMPLE_RATE, recordings
from intaglio.targets import DEFAULT
from intaglio.validation.bench.load import Load, Round, Timing

TAKEN = ("target", "threads")
SECONDS = 10  # of audio in each row of a batch


def refuse_text_options(bundle: Bundle, options: Mapping[str, Any], prompts: Sequence[str] | None) -> None:
    """Raise `UsageError` for `options` of generation, and for prompts."""
    unexpected = [name for name in options if name not in TAKEN]
    if unexpected or prompts is not None:
        name = unexpected[0].replace("_", "-") if unexpected else "data"
        raise UsageError(f"--{name}: {bundle.path} is a speech recogniser, which takes no prompts. Leave it out.")


class SpeechBench:
    """Runs batches of recordings of `SECONDS` seconds, without decoding; the load's concurrency is the batch size."""

    kind, unit = "recogniser", "seconds of audio"

    def __init__(self, bundle: Bundle, options: Mapping[str, Any], prompts: Sequence[str] | None):
        """Raises `UsageError` for `options` of generation, for prompts, and for a bundle that takes no recordings."""
        refuse_text_options(bundle, options, prompts)
        with bounded(options.get("threads")):
            self._recognizer = SpeechRecognizer(bundle, options.get("target", DEFAULT))
        rate = self._recognizer.audio.sample_rate
        spoken = np.concatenate([resampled(each.samples, SAMPLE_RATE, rate) for each in recordings()])
        size = SECONDS * rate
        self._rows = [spoken[start : start + size] for start in range(0, len(spoken) - size, size // 4)]

    def run(self, load: Load) -> Round:
        """Run a round: with a number of requests, batches of that many recordings in all."""
        if load.prompt_tokens is not None:
            raise UsageError("--prompt-tokens: a speech recogniser takes recordings. Leave it out.")
        began = time.perf_counter()
        timings: list[Timing] = []
        sent = 0
        for _, start in load.arrivals(began):
            batch = [self._rows[(load.first + sent + place) % len(self._rows)] for place in range(load.concurrency)]
            lengths = np.array([len(row) for row in batch], np.int64)
            self._recognizer.log_probs(np.stack(batch), lengths)
            timings.append(Timing(time.perf_counter() - start, len(batch) * SECONDS))
            sent += len(batch)
            if load.requests is not None and sent >= load.requests:
                break
        return Round(time.perf_counter() - began, timings)
