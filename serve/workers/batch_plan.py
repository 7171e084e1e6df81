"""Select the encoder's next batch: the oldest waiting text, with others of similar length.

A batch is as wide as its longest text, so its cost is rows times longest; the rest of the shorter texts is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intaglio.errors import UsageError

FREE_PADDING = 16  # tokens; the overhead of a run, in the time of tokens (MiniLM on one thread: 10)


@dataclass(frozen=True)
class BatchLimits:
    """Limits of a batch. Raises `UsageError` for values out of range."""

    texts: int = 256
    tokens: int = 4096  # rows times longest; a longer text runs alone
    padding: float = 0.2  # maximum part of the width that is padding, for each text, beyond `FREE_PADDING`

    def __post_init__(self) -> None:
        for name in ("texts", "tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} per batch {getattr(self, name)}: expected at least 1.")
        if not 0 <= self.padding <= 1:
            raise UsageError(f"padding per batch {self.padding}: expected 0 to 1.")

    def allow(self, count: int, shortest: int, longest: int) -> bool:
        """Whether a batch of `count` texts of `shortest` to `longest` tokens fits."""
        return (
            count <= self.texts
            and count * longest <= self.tokens
            and longest - shortest <= max(self.padding * longest, FREE_PADDING)
        )


def next_batch(lengths: Sequence[int], limits: BatchLimits) -> list[int]:
    """Choose from texts of `lengths` tokens, oldest first: their places, in order, always with 0 among them.

    The batch starts with the oldest text and takes the one closest in length, shorter or longer, as long as `limits`
    allow it. As the oldest is in every batch, a text waits at most for as many batches as there are texts before it.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)  # stable: equal lengths stay in the order of arrival
    low = high = order.index(0)
    while True:
        count = high - low + 2
        found = []  # padding with a neighbour (up to a constant), its place in `order`
        for place in (low - 1, high + 1):
            if 0 <= place < len(order):
                shortest, longest = lengths[order[min(low, place)]], lengths[order[max(high, place)]]
                if limits.allow(count, shortest, longest):
                    found.append((count * longest - lengths[order[place]], place))
        if not found:
            return sorted(order[low : high + 1])
        _, place = min(found)
        low, high = min(low, place), max(high, place)
