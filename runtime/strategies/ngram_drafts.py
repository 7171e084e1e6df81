"""N-gram drafts, copied from the text: tokens that followed the last n-gram earlier (prompt lookup, Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from intaglio.runtime.strategies.windows import learn


@dataclass
class NgramIndex:
    """The last occurrence that has a token after it of each n-gram, of 1 to `longest` tokens, in a growing text."""

    longest: int
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> place of the token after it
    known: int = 0  # tokens of the text whose n-grams are in `ends`

    def extend(self, tokens: Sequence[int]) -> None:
        """Process the tokens added to the text, which is now `tokens`."""
        for end in range(self.known + 1, len(tokens)):
            self.ends.update({tuple(tokens[end - size : end]): end for size in range(1, min(self.longest, end) + 1)})
        self.known = max(len(tokens) - 1, 0)

    def after(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Find the longest suffix of `tokens` that occurred in the text; return the place after it and its length."""
        sizes = range(min(self.longest, len(tokens)), 0, -1)
        return next(((self.ends[gram], size) for size in sizes if (gram := tuple(tokens[-size:])) in self.ends), None)


class NgramDraft(NamedTuple):
    """A token that may come next, because it followed the same n-gram earlier."""

    token: int
    chance: float  # estimated probability that it does
    size: int  # length of the n-gram


class NgramDrafter:
    """Proposes the next tokens of one text, and learns how reliable n-grams of each length are.

    The initial estimate for n-grams of n tokens is a probability of n / (n + 2).
    """

    def __init__(self, longest: int):
        """`longest`: maximum length of an n-gram; 0: propose nothing."""
        self._index = NgramIndex(longest)
        self._chances = [size / (size + 2) for size in range(longest + 1)]
        self._tokens: Sequence[int] = ()  # processed so far
        self._end: Sequence[int] = ()  # the last `longest` of them

    def extend(self, tokens: Sequence[int]) -> None:
        """Process the tokens added to the text, which is now `tokens`."""
        self._index.extend(tokens)
        self._tokens = tokens  # they only grow
        self._end = tokens[max(len(tokens) - self._index.longest, 0) :]

    def after(self, path: Sequence[int]) -> NgramDraft | None:
        """Return the token that may follow the text and the tokens `path` after it."""
        if found := self._index.after([*self._end, *path]):
            place, size = found
            return NgramDraft(self._tokens[place], self._chances[size], size)
        return None

    def chain(self, most: int) -> tuple[list[int], list[float]]:
        """Propose up to `most` successive tokens, each with the probability that it and all before it are right."""
        tokens, chances = list[int](), list[float]()
        while len(tokens) < most and (draft := self.after(tokens)):
            tokens.append(draft.token)
            chances.append(draft.chance * (chances[-1] if chances else 1.0))
        return tokens, chances

    def observe(self, generated: Sequence[int]) -> None:
        """Learn from the tokens that were generated after the text."""
        for ahead, token in enumerate(generated):
            if draft := self.after(generated[:ahead]):
                self._chances[draft.size] = learn(draft.chance, draft.token == token)
