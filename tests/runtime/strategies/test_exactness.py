"""Greedy texts of exact strategies equal the target model's, token for token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import pytest
from tiny_decoders import VOCABULARY

from intaglio.runtime.generation.generate import generate
from intaglio.runtime.generation.scheduling.generated import Generated

METHODS: dict[str, dict[str, Any]] = {
    "bild": {"strategy": "bild", "rollback": 0.0},
    "speculative": {"strategy": "speculative"},
    "speculative-1": {"strategy": "speculative", "window": 1},
    "speculative-4": {"strategy": "speculative", "window": 4},
    "ngram": {"strategy": "ngram"},
}
methods = pytest.mark.parametrize("method", METHODS)


def options_of(method: str, small: Path) -> dict[str, Any]:
    return METHODS[method] | ({} if method == "ngram" else {"draft": small})


@pytest.fixture(scope="module")
def plain(trained_pair: tuple[Path, Path], four_bit: Path, prompts: list[str]) -> dict[Path, list[Generated]]:
    """The greedy texts of the target model: in float32, and with weights of four bits."""
    return {
        bundle: list(generate(bundle, prompts[:8], max_new_tokens=40, threads=1))
        for bundle in (trained_pair[1], four_bit)
    }


@pytest.mark.covering(1)  # test_scheduler_exactness mixes batches, bits and strategies
@methods
@pytest.mark.parametrize("weights", ["float32", "4 bits"])
@pytest.mark.parametrize(("batch", "count"), [(1, 8), (3, 8)])
def test_trained_models_equal_the_target_models_text(
    method: str,
    weights: str,
    batch: int,
    count: int,
    trained_pair: tuple[Path, Path],
    four_bit: Path,
    prompts: list[str],
    plain: dict[Path, list[Generated]],
) -> None:
    bundle = four_bit if weights == "4 bits" else trained_pair[1]
    options = options_of(method, trained_pair[0])
    found = list(generate(bundle, prompts[:count], max_new_tokens=40, batch=batch, threads=1, **options))
    assert [result.tokens for result in found] == [result.tokens for result in plain[bundle][:count]]
    assert [result.text for result in found] == [result.text for result in plain[bundle][:count]]
    assert sum(result.rolled_back for result in found) > 0
    if method != "bild":  # whose draft model is never as certain as a rollback of 0 demands
        assert sum(result.accepted for result in found) > 5 * count


@pytest.mark.covering(1)
@methods
@pytest.mark.parametrize("penalty", [1.0, 1.4, 1.7])
def test_certain_models_equal_the_target_models_text(
    method: str, penalty: float, certain_pair: tuple[Path, Path]
) -> None:
    """BiLD accepts tokens with a probability of exactly 1 at a rollback of 0 too."""
    small, large = certain_pair
    prompts = [f"{first}{then} hello" for first, then in zip(ascii_uppercase[:12], ascii_lowercase, strict=False)]
    options: dict[str, Any] = {"max_new_tokens": 40, "repetition_penalty": penalty, "batch": len(prompts), "threads": 1}
    plain = list(generate(large, prompts, **options))
    found = list(generate(large, prompts, **options, **options_of(method, small)))
    assert [result.tokens for result in found] == [result.tokens for result in plain]
    assert sum(result.accepted for result in found) > 0 or method == "ngram"


@pytest.mark.covering(1)
@methods
@pytest.mark.parametrize("wider", ["small", "large"])
def test_vocabularies_may_be_padded_to_different_sizes(
    method: str, wider: str, make_decoder: Callable[..., tuple[Path, Path]], export_altered: Callable[..., Path]
) -> None:
    def pad(weights: dict[str, Any]) -> None:
        weights["lm_head.weight"][257:] = 0  # beyond the tokenizer's tokens

    sizes = {"small": VOCABULARY, "large": VOCABULARY} | {wider: 288}
    pair = {
        which: export_altered(make_decoder("llama", vocab_size=size, tie_word_embeddings=False)[0], pad)
        for which, size in sizes.items()
    }
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True, "threads": 1}
    plain = list(generate(pair["large"], ["Hello", "x"], **options))
    found = list(generate(pair["large"], ["Hello", "x"], **options, **options_of(method, pair["small"])))
    assert [result.tokens for result in found] == [result.tokens for result in plain]
