"""Latency and throughput of a text encoder in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.processes.threads import bounded
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.text.tokenizer import Pair, Tokenizer
from intaglio.samples.sentences import sentences
from intaglio.targets import DEFAULT
from intaglio.validation.bench.decoder import DEFAULT_PROMPT
from intaglio.validation.bench.load import Load, Round
from intaglio.validation.bench.prompts import of_tokens
from intaglio.validation.bench.taken import TAKEN


class EncoderBench:
    """Runs batches of texts, tokenization included; the load's concurrency is the batch size."""

    kind, unit = "encoder", "texts"

    def __init__(self, bundle: Bundle, options: Mapping[str, Any], prompts: Sequence[str] | None):
        """Raises `UsageError` for `options` of generation, `BundleError` for a bundle without a tokenizer."""
        if unexpected := [name for name in options if name not in TAKEN]:
            name = unexpected[0].replace("_", "-")
            raise UsageError(f"--{name}: {bundle.path} is an encoder and cannot generate. Leave it out.")
        self._given = prompts
        self._tokenizer = Tokenizer.open(bundle)
        self._query = sentences()[0] if bundle.manifest.pair else None
        with bounded(options.get("threads")):
            self._engine = open_engine(bundle, options.get("target", DEFAULT))
        self._lengths: dict[int | None, Sequence[str]] = {}

    def run(self, load: Load) -> Round:
        """Run a round: with a number of requests, batches of that many texts in all."""
        texts = self._texts(load.prompt_tokens)

        def run(numbers: list[int]) -> tuple[int, int]:
            chosen = [texts[number % len(texts)] for number in numbers]
            batch = [text if self._query is None else Pair(self._query, text) for text in chosen]
            feeds = self._tokenizer.feeds(batch, truncate=True)
            self._engine.run(feeds)
            return len(batch), int(feeds[self._tokenizer.inputs[0]].shape[1])

        return load.batched(run)

    def _texts(self, tokens: int | None) -> Sequence[str]:
        """Texts of this length. Raises `UsageError` for one beyond the model's maximum."""
        if tokens not in self._lengths:
            longest = self._tokenizer.max_length
            if tokens and longest and tokens > longest:
                raise UsageError(f"prompt tokens {tokens}: the model takes at most {longest}. Give a smaller number.")
            length = tokens or min(DEFAULT_PROMPT, longest or DEFAULT_PROMPT)
            self._lengths[tokens] = self._given or of_tokens(self._tokenizer.backend, length)
        return self._lengths[tokens]
