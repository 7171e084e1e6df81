"""Texts with quantised caches: strategies write what plain decoding writes, alone and in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intaglio.runtime.engines.onnxruntime.session_operators import can_put_in
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.targets import TARGETS

pytestmark = pytest.mark.skipif(not can_put_in(TARGETS["ort-cpu"]), reason="no compiled kernels")

PROMPTS = ("The first thing that", "A list is a", "When the file")


def texts(bundle: Path, bits: int | None = 8, batch: int = 3, **options: Any) -> list[str]:
    with TextGenerator(bundle, batch=batch, max_new_tokens=24, cache_bits=bits, **options) as generator:
        return [run.result().text for run in generator.generate_many(PROMPTS)]


@pytest.mark.parametrize("bits", [8, 4])
def test_drafts_change_no_text(bits: int, trained_pair: tuple[Path, Path]) -> None:
    large, small = trained_pair
    expected = texts(large, bits, batch=1)
    assert len(set(expected)) == len(PROMPTS)
    assert texts(large, bits) == expected
    assert texts(large, bits, strategy="ngram") == expected
    assert texts(large, bits, strategy="speculative", draft=small) == expected


def test_early_exit_shares_the_caches(exiting: Path) -> None:
    assert texts(exiting, early_exit=True, strategy="speculative") == texts(exiting)


def test_texts_follow_the_prefix_that_another_left(trained_pair: tuple[Path, Path]) -> None:
    with TextGenerator(trained_pair[0], batch=2, max_new_tokens=16, cache_bits=8) as generator:
        first, second = (run.result() for run in generator.generate_many([PROMPTS[0], PROMPTS[0]]))
        assert first.text == second.text
