"""Drafts copied from the text: tokens that followed the last n-gram earlier (prompt lookup, Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from intaglio.runtime.strategies.windows import learn


@dataclass
class Places:
    """The last occurrence of each n-gram, of 1 to `longest` tokens, in a growing text, that has a token after it."""

    longest: int
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> place of the token after it
    known: int = 0  # tokens of the text whose n-grams are in `ends`

    def read(self, tokens: Sequence[int]) -> None:
        """Process the tokens added to the text, which is now `tokens`."""
        for end in range(self.known + 1, len(tokens)):
            self.ends.update({tuple(tokens[end - size : end]): end for size in range(1, min(self.longest, end) + 1)})
        self.known = max(len(tokens) - 1, 0)

    def after(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Find the longest suffix of `tokens` that occurred in the text; return the place after it and its length."""
        sizes = range(min(self.longest, len(tokens)), 0, -1)
        return next(((self.ends[gram], size) for size in sizes if (gram := tuple(tokens[-size:])) in self.ends), None)


class Copy(NamedTuple):
    """A token that may come next, because it followed the same n-gram earlier."""

    token: int
    chance: float  # estimated probability that it does
    size: int  # length of the n-gram


class Copies:
    """Proposes the next tokens of one text, and learns how reliable n-grams of each length are.

    The initial estimate for n-grams of n tokens is a probability of n / (n + 2).
    """

    def __init__(self, longest: int):
        """`longest`: maximum length of an n-gram; 0: propose nothing."""
        self._places = Places(longest)
        self._chances = [size / (size + 2) for size in range(longest + 1)]
        self._tokens: Sequence[int] = ()  # read so far
        self._end: Sequence[int] = ()  # the last `longest` of them

    def read(self, tokens: Sequence[int]) -> None:
        """Process the tokens added to the text, which is now `tokens`."""
        self._places.read(tokens)
        self._tokens = tokens  # they only grow
        self._end = tokens[max(len(tokens) - self._places.longest, 0) :]

    def after(self, path: Sequence[int]) -> Copy | None:
        """Return the token that may follow the text and the tokens `path` after it."""
        if found := self._places.after([*self._end, *path]):
            place, size = found
            return Copy(self._tokens[place], self._chances[size], size)
        return None

    def chain(self, most: int) -> tuple[list[int], list[float]]:
        """Propose up to `most` successive tokens, each with the probability that it and all before it are right."""
        tokens, chances = list[int](), list[float]()
        while len(tokens) < most and (copy := self.after(tokens)):
            tokens.append(copy.token)
            chances.append(copy.chance * (chances[-1] if chances else 1.0))
        return tokens, chances

    def observe(self, written: Sequence[int]) -> None:
        """Learn from the tokens that were written after the text."""
        for ahead, token in enumerate(written):
            if copy := self.after(written[:ahead]):
                self._chances[copy.size] = learn(copy.chance, copy.token == token)
