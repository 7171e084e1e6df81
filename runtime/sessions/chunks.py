"""Cutting the tokens of a batch into steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PerRow = Sequence[Sequence[int]]


class Cut(NamedTuple):
    """What one step takes of each row's tokens and of the logits wanted at its end, and what is left for later ones."""

    tokens: PerRow
    wanted: Sequence[int]
    later_tokens: PerRow
    later_wanted: Sequence[int]


def cut(new_tokens: PerRow, wanted: Sequence[int], width: int) -> Cut:
    """Cut a step of at most `width` tokens off the rows, such that all of them end in the last step."""
    longest = max(map(len, new_tokens))
    places = [max(len(tokens) - longest + width, 0) for tokens in new_tokens]
    taken = [tokens[:place] for tokens, place in zip(new_tokens, places, strict=True)]
    left = [tokens[place:] for tokens, place in zip(new_tokens, places, strict=True)]
    now = [max(count - len(rest), 0) for count, rest in zip(wanted, left, strict=True)]
    return Cut(taken, now, left, [count - here for count, here in zip(wanted, now, strict=True)])
