"""N-gram drafting: drafts copy the continuation of an earlier occurrence."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.strategies.ngram import NGram


def test_repetitive_text_is_drafted_from_copies(trained_pair: tuple[Path, Path]) -> None:
    (result,) = generate(
        trained_pair[1],
        "The list of lists: one, two, three, one, two, three, one,",
        strategy="ngram",
        max_new_tokens=30,
    )
    assert result.accepted > 0
    assert result.calls.large < len(result.tokens)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ngram": 0}, "ngram 0: expected 1 to 1024."),
        ({"ngram": 10**9}, "ngram 1000000000: expected 1 to 1024."),
        ({"window": -2}, "window -2: expected 1 to 1024"),
        ({"min_draft_prob": 2.0}, "min draft prob 2.0: expected a probability"),
    ],
)
def test_out_of_range_options_raise_usage_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}"):
        NGram(**options)


def drafted(results: Iterable[Generated]) -> int:
    return sum(result.accepted + result.rolled_back for result in results)


def test_unlikely_tokens_are_not_drafted(trained_pair: tuple[Path, Path], prompts: list[str]) -> None:
    counts = [
        drafted(generate(trained_pair[1], prompts[:4], strategy="ngram", min_draft_prob=least, max_new_tokens=40))
        for least in (1e-6, 0.2, 1.0)
    ]
    assert counts[0] > counts[1] > counts[2] == 0


def test_rejected_copies_stop_drafting(tiny_decoder: Path) -> None:
    """Random tokens that all occurred before: the initial estimate of acceptance is one third."""
    with TextGenerator(
        tiny_decoder, strategy="ngram", ngram=1, min_draft_prob=0.3, max_new_tokens=50, temperature=50.0, top_k=12,
        seed=0, ignore_eos=True,
    ) as generator:  # fmt: skip
        result = generator.write("Hello").whole()
    assert drafted([result]) > 0
    assert all(written.by == "large" for written in result.trace[-30:])
