"""Caches that a long request enlarged are given back after some short ones, and nobody's text changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.scheduling.row_assignment import PATIENCE

SHORT = ("The first thing that", "A list is a", "When the file", "If the name", "A function that")
NEW = 8  # tokens of a text


def long_prompt(generator: TextGenerator) -> list[int]:
    """Token ids that fill most of the model's positions."""
    words = generator.encode("the file is read and the list is written before that ")
    return (words * generator.limit)[: generator.limit - 2 * NEW]


def after_a_long_request(bundle: Path, count: int, **options: Any) -> tuple[list[int], list[str]]:
    """The slots of the target's cache after a long request and `count` short ones, and the texts of those."""
    slots, texts = [], []
    with TextGenerator(bundle, max_new_tokens=NEW, **options) as generator:
        generator.write(generator.tokenizer.decode(long_prompt(generator))).whole()
        slots.append(generator.scheduler._target.capacity)
        for number in range(count):
            texts.append(generator.write(SHORT[number % len(SHORT)]).whole().text)
            slots.append(generator.scheduler._target.capacity)
    return slots, texts


@pytest.mark.parametrize("bits", [None, 8])
def test_slots_are_given_back_after_short_requests(bits: int | None, trained_pair: tuple[Path, Path]) -> None:
    count = 2 * PATIENCE + 2
    slots, texts = after_a_long_request(trained_pair[0], count, cache_bits=bits)
    assert slots[0] == slots[PATIENCE - 2] > slots[-1]
    with TextGenerator(trained_pair[0], max_new_tokens=NEW, cache_bits=bits) as generator:
        assert texts == [generator.write(SHORT[number % len(SHORT)]).whole().text for number in range(count)]


@pytest.mark.parametrize("kind", ["draft", "early exit"])
def test_models_that_draft_give_back_too(kind: str, trained_pair: tuple[Path, Path], exiting: Path) -> None:
    bundle = trained_pair[0] if kind == "draft" else exiting
    options = {"draft": trained_pair[1]} if kind == "draft" else {"early_exit": True}
    count = 2 * PATIENCE + 2
    slots, texts = after_a_long_request(bundle, count, strategy="speculative", **options)
    assert slots[0] > slots[-1]
    with TextGenerator(bundle, max_new_tokens=NEW) as generator:
        assert texts == [generator.write(SHORT[number % len(SHORT)]).whole().text for number in range(count)]


def test_a_long_text_that_is_continued_keeps_its_slots(trained_pair: tuple[Path, Path]) -> None:
    with TextGenerator(trained_pair[0], max_new_tokens=1, batch=2) as generator:
        prompt = generator.tokenizer.decode(long_prompt(generator)[: -2 * NEW])
        slots = []
        for number in range(4 * PATIENCE):
            generator.write(prompt if number % 4 == 0 else SHORT[number % 4]).whole()
            slots.append(generator.scheduler._target.capacity)
        assert len(set(slots)) == 1


def test_running_texts_keep_their_slots(trained_pair: tuple[Path, Path]) -> None:
    """A long text runs while short ones come and go beside it."""
    with TextGenerator(trained_pair[0], max_new_tokens=6 * NEW, batch=2, ignore_eos=True) as generator:
        prompt = generator.tokenizer.decode(long_prompt(generator)[: -6 * NEW])
        prompts = [prompt, *SHORT, *SHORT, *SHORT]
        together = [run.result().text for run in generator.generate_many(prompts)]
        alone = [generator.write(prompt).whole().text for prompt in prompts]
    assert together == alone
