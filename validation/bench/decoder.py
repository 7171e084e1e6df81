"""Latency and throughput of a decoder, or an encoder-decoder, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.validation.bench.load import Load, Round, Timing
from intaglio.validation.bench.prompts import of_tokens

DEFAULT_PROMPT = 128  # tokens


class DecoderBench:
    """Generates texts, at the load's concurrency. No request reuses the prompt of another."""

    unit = "tokens"

    def __init__(self, bundle: Bundle, options: Mapping[str, Any], prompts: Sequence[str] | None, rows: int):
        """`options`: of `TextGenerator`; `prompts`: None for pieces of running text; `rows`: to open first."""
        self.kind = "decoder" if bundle.manifest.encoder is None else "encoder-decoder"
        self._bundle, self._options, self._given = bundle, options, prompts
        self._generator = self._open(rows)
        self._lengths: dict[int | None, Sequence[str]] = {}

    def run(self, load: Load) -> Round:
        """Run a round; raises `UsageError` for prompts that the model does not take."""
        if self._generator.batch != load.concurrency:
            self._generator.__exit__(None, None, None)
            self._generator = self._open(load.concurrency)
        prompts = self._prompts(load.prompt_tokens)
        began = time.perf_counter()
        texts = [run.result() for run in self._generator.generate_many(_taken(prompts, load, began))]
        return Round(time.perf_counter() - began, [_timing(text) for text in texts])

    def _open(self, rows: int) -> TextGenerator:
        generator = TextGenerator(self._bundle, batch=rows, **self._options)
        generator.reuse_prefix = False
        return generator

    def _prompts(self, tokens: int | None) -> Sequence[str]:
        """The prompts of this length, checked once."""
        if tokens not in self._lengths:
            length = tokens or min(DEFAULT_PROMPT, self._generator.limit // 2)
            prompts = self._given or of_tokens(self._generator.tokenizer, length)
            self._generator.check(prompts, lambda number: f"prompt {number} of {len(prompts)}")
            self._lengths[tokens] = prompts
        return self._lengths[tokens]


def _taken(prompts: Sequence[str], load: Load, began: float) -> Iterator[str]:
    """The prompts of a round, each taken when a row is free for it."""
    for number, _ in load.arrivals(began):
        yield prompts[(load.first + number) % len(prompts)]


def _timing(text: Generated) -> Timing:
    return Timing(
        seconds=text.queued_seconds + text.seconds,
        units=len(text.tokens),
        prompt_tokens=text.prompt_tokens,
        first=text.queued_seconds + text.prompt_seconds,
        per_token=1 / text.tokens_per_second if len(text.tokens) > 1 else None,
    )
