"""N-gram drafting: what it copies is what followed the text's last tokens before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UsageError
from intaglio.runtime.generate import generate
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
        ({"ngram": 0}, "ngram 0: expected at least 1."),
        ({"window": -2}, "window -2: expected at"),
        ({"least": 2.0}, "least 2.0: expected a probability"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        NGram(**options)
