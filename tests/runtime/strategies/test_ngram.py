"""N-gram drafting: what it copies is what followed the text's last tokens before."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.errors import UsageError
from intaglio.runtime.generate import generate
from intaglio.runtime.strategies.ngram import NGram, _Places


def naive(text: list[int], longest: int) -> int | None:
    """The place after the last earlier occurrence of the longest possible end of `text`, found by reading it all."""
    for size in range(min(longest, len(text)), 0, -1):
        for place in range(len(text) - 1, size - 1, -1):
            if text[place - size : place] == text[-size:]:
                return place
    return None


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=8), st.integers(1, 4))
def test_a_growing_text_is_looked_up_as_if_it_were_read_anew(pieces: list[list[int]], longest: int) -> None:
    places, text = _Places(longest), []
    for piece in pieces:
        text += piece
        assert places.after_the_last(text) == naive(text, longest)


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
    ("options", "said"), [({"ngram": 0}, "ngram 0: expected at least 1."), ({"window": -2}, "window -2: expected at")]
)
def test_options_out_of_range_are_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=f"^{said}"):
        NGram(**options)
