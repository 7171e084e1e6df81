"""N-gram drafting: what it copies is what followed the text's last tokens before."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UsageError
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.generation.generated import Generated
from intaglio.runtime.strategies.ngram import NGram


def test_a_text_that_repeats_itself_is_copied(trained_pair: tuple[Path, Path]) -> None:
    (result,) = generate(
        trained_pair[1],
        "The list of lists: one, two, three, one, two, three, one,",
        strategy="ngram",
        max_new_tokens=30,
    )
    assert result.accepted > 0
    assert result.calls.large < len(result.tokens)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ngram": 0}, "ngram 0: expected 1 to 1024."),
        ({"ngram": 10**9}, "ngram 1000000000: expected 1 to 1024."),
        ({"window": -2}, "window -2: expected 1 to 1024"),
        ({"min_draft_prob": 2.0}, "min draft prob 2.0: expected a probability"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        NGram(**options)


def drafted(results: Iterable[Generated]) -> int:
    return sum(result.accepted + result.rolled_back for result in results)


def test_what_is_not_likely_enough_is_not_drafted(trained_pair: tuple[Path, Path], prompts: list[str]) -> None:
    counts = [
        drafted(generate(trained_pair[1], prompts[:4], strategy="ngram", min_draft_prob=least, max_new_tokens=40))
        for least in (1e-6, 0.2, 1.0)
    ]
    assert counts[0] > counts[1] > counts[2] == 0


def test_where_copies_prove_wrong_no_more_are_drafted(tiny_decoder: Path) -> None:
    """Of random tokens, of which each has occurred before: at first one of three is thought to go on as before."""
    with TextGenerator(
        tiny_decoder, strategy="ngram", ngram=1, min_draft_prob=0.3, max_new_tokens=50, temperature=50.0, top_k=12,
        seed=0, ignore_eos=True,
    ) as generator:  # fmt: skip
        result = generator.write("Hello").whole()
    assert drafted([result]) > 0
    assert all(written.by == "large" for written in result.trace[-30:])
