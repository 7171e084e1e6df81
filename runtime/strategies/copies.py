"""What followed the last few tokens before, in the text, may follow again: prompt lookup (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from intaglio.runtime.strategies.windows import learn


@dataclass
class Places:
    """Where each n-gram of a growing text, of 1 to `longest` tokens, occurred last with something after it."""

    longest: int
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> place of the token after it
    known: int = 0  # tokens of the text whose n-grams are in `ends`

    def read(self, tokens: Sequence[int]) -> None:
        """Look at what was added to the text, which is now `tokens`."""
        for end in range(self.known + 1, len(tokens)):
            self.ends.update({tuple(tokens[end - size : end]): end for size in range(1, min(self.longest, end) + 1)})
        self.known = max(len(tokens) - 1, 0)

    def after(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """The place after the last occurrence, in what was read, of the longest end of `tokens` that occurred there;
        and the length of that end.
        """
        sizes = range(min(self.longest, len(tokens)), 0, -1)
        return next(((self.ends[gram], size) for size in sizes if (gram := tuple(tokens[-size:])) in self.ends), None)


class Copy(NamedTuple):
    """A token that may follow, for it followed the same tokens before."""

    token: int
    chance: float  # that it does
    size: int  # how many tokens were the same


class Copies:
    """Proposes what may follow in one text, and learns from what does how far n-grams of each length can be relied on.

    Of those of n tokens it is thought at first that n of n + 2 are followed by what followed them before.
    """

    def __init__(self, longest: int):
        """`longest`: tokens that are looked for at most; 0: nothing is proposed."""
        self._places = Places(longest)
        self._chances = [size / (size + 2) for size in range(longest + 1)]
        self._tokens: Sequence[int] = ()  # read so far
        self._end: Sequence[int] = ()  # of them the last ones that are looked for

    def read(self, tokens: Sequence[int]) -> None:
        """Look at what was added to the text, which is now `tokens`."""
        self._places.read(tokens)
        self._tokens = tokens  # which only grow
        self._end = tokens[max(len(tokens) - self._places.longest, 0) :]

    def after(self, path: Sequence[int]) -> Copy | None:
        """What may follow the text that was read and the tokens `path` after it."""
        if found := self._places.after([*self._end, *path]):
            place, size = found
            return Copy(self._tokens[place], self._chances[size], size)
        return None

    def chain(self, most: int) -> tuple[list[int], list[float]]:
        """At most `most` tokens that may follow, each after those before it, and the chance that all up to it do."""
        tokens, chances = list[int](), list[float]()
        while len(tokens) < most and (copy := self.after(tokens)):
            tokens.append(copy.token)
            chances.append(copy.chance * (chances[-1] if chances else 1.0))
        return tokens, chances

    def observe(self, written: Sequence[int]) -> None:
        """Learn from the tokens that were written after the text that was read."""
        for ahead, token in enumerate(written):
            if copy := self.after(written[:ahead]):
                self._chances[copy.size] = learn(copy.chance, copy.token == token)
