"""The options of `TextGenerator` as types, for the functions that pass them on.

They match those of the command line; tests hold both against the constructor and the strategies' dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.generation.scheduling.scheduler_options import SchedulerOptions


class StrategyOptions(TypedDict, total=False):
    """Options of single strategies, whose dataclasses in `intaglio.runtime.strategies` describe them."""

    fallback: float | None
    rollback: float | None
    max_draft: int | None
    window: int | None
    ngram: int | None
    min_draft_prob: float | None
    tree: int | None
    draft_positions: int | None
    typical: float | None
    saturation: float | None
    decay: float | None


class DecodingOptions(StrategyOptions, total=False):
    """How a text is generated, and on what."""

    strategy: str | None
    draft: str | Path | Bundle | None
    early_exit: bool
    target: str
    threads: int | None
    cache_bits: int | None


class WritingOptions(DecodingOptions, total=False):
    """Which tokens are chosen, with which adapters, and when a text ends."""

    adapter: Sequence[str | Path]
    max_new_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    stop: Sequence[str]
    ignore_eos: bool


class GeneratorOptions(WritingOptions, total=False):
    """Every option of `TextGenerator`."""

    schema: Mapping[str, Any] | bool | str | None
    grammar: str | None
    regex: str | None
    batch: int
    scheduling: SchedulerOptions | None
    source_language: str | None
    target_language: str | None
