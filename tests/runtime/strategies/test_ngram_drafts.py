"""N-gram drafts: copied from the last occurrence of the text's suffix, with learned acceptance probabilities."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.strategies.ngram_drafts import NgramDraft, NgramDrafter, NgramIndex


def naive(text: list[int], end: list[int], longest: int) -> tuple[int, int] | None:
    """The place after the last occurrence in `text` of the longest matching suffix of `end`, by exhaustive search."""
    for size in range(min(longest, len(end)), 0, -1):
        for place in range(len(text) - 1, size - 1, -1):
            if text[place - size : place] == end[-size:]:
                return place, size
    return None


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=8),
    st.lists(st.integers(0, 2), max_size=3),
    st.integers(0, 4),
)
def test_incremental_index_equals_full_search(pieces: list[list[int]], path: list[int], longest: int) -> None:
    index, drafter, text = NgramIndex(longest), NgramDrafter(longest), list[int]()
    for piece in pieces:
        text += piece
        index.extend(text)
        drafter.extend(text)
        assert index.after(text) == naive(text, text, longest)
        found, expected = drafter.after(path), naive(text, text + path, longest)
        assert (found and (found.token, found.size)) == (expected and (text[expected[0]], expected[1]))


def test_accepted_drafts_raise_the_estimated_probability() -> None:
    drafter = NgramDrafter(2)
    drafter.extend([1, 2, 3, 4, 1, 2])
    first, beyond = drafter.after([]), drafter.after([3])
    assert (first, beyond) == (NgramDraft(3, 0.5, 2), NgramDraft(4, 0.5, 2))
    assert drafter.chain(9) == ([3, 4, 1, 2, 3, 4, 1, 2, 3], [0.5**ahead for ahead in range(1, 10)])
    assert drafter.chain(1) == ([3], [0.5])
    drafter.observe([3, 9])  # right, then wrong: both were found by two tokens; nothing is proposed after 9
    (after,) = filter(None, [drafter.after([])])
    assert after.chance == pytest.approx(0.9 * (0.9 * 0.5 + 0.1))
    assert drafter.after([9]) is None
