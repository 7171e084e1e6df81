"""Latency and throughput of a speech recogniser in this process."""

from __future__ import annotations

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
from intaglio.validation.bench.load import Load, Round
from intaglio.validation.bench.taken import refuse_text_options

SECONDS = 10  # of audio in each row of a batch


class SpeechBench:
    """Runs batches of recordings of `SECONDS` seconds, without decoding; the load's concurrency is the batch size."""

    kind, unit = "recogniser", "seconds of audio"

    def __init__(self, bundle: Bundle, options: Mapping[str, Any], prompts: Sequence[str] | None):
        """Raises `UsageError` for `options` of generation, for prompts, and for a bundle that takes no recordings."""
        refuse_text_options(options, prompts, f"{bundle.path} is a speech recogniser, which")
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

        def run(numbers: list[int]) -> tuple[int, int]:
            batch = [self._rows[number % len(self._rows)] for number in numbers]
            lengths = np.array([len(row) for row in batch], np.int64)
            self._recognizer.log_probs(np.stack(batch), lengths)
            return len(batch) * SECONDS, 0

        return load.batched(run)
