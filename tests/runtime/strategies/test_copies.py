"""Copies: found where a text's end occurred last, and relied on as far as they proved right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.strategies.copies import Copies, Copy, Places


def naive(text: list[int], end: list[int], longest: int) -> tuple[int, int] | None:
    """The place after the last piece of `text` that is as long an end of `end` as any, found by reading it all."""
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
def test_a_growing_text_is_looked_up_as_if_it_were_read_anew(
    pieces: list[list[int]], path: list[int], longest: int
) -> None:
    places, copies, text = Places(longest), Copies(longest), list[int]()
    for piece in pieces:
        text += piece
        places.read(text)
        copies.read(text)
        assert places.after(text) == naive(text, text, longest)
        found, expected = copies.after(path), naive(text, text + path, longest)
        assert (found and (found.token, found.size)) == (expected and (text[expected[0]], expected[1]))


def test_what_proved_right_is_thought_likelier() -> None:
    copies = Copies(2)
    copies.read([1, 2, 3, 4, 1, 2])
    first, beyond = copies.after([]), copies.after([3])
    assert (first, beyond) == (Copy(3, 0.5, 2), Copy(4, 0.5, 2))
    assert copies.chain(9) == ([3, 4, 1, 2, 3, 4, 1, 2, 3], [0.5**ahead for ahead in range(1, 10)])
    assert copies.chain(1) == ([3], [0.5])
    copies.observe([3, 9])  # right, then wrong: both were found by two tokens; nothing is proposed after 9
    (after,) = filter(None, [copies.after([])])
    assert after.chance == pytest.approx(0.9 * (0.9 * 0.5 + 0.1))
    assert copies.after([9]) is None
