"""Which of the waiting texts an encoder runs next: the oldest, with those of about its length.

A batch is as wide as its longest text, so its cost is rows times longest; the rest of the shorter texts is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from intaglio.errors import UsageError

FREE_PADDING = 16  # tokens; about what a run of its own costs beside its tokens (MiniLM on one thread: 10)


@dataclass(frozen=True)
class BatchLimits:
    """Limits of a batch. Raises `UsageError` for values out of range."""

    texts: int = 256
    tokens: int = 4096  # rows times longest; a longer text runs alone
    padding: float = 0.2  # maximum part of these tokens that is padding, beyond `FREE_PADDING`

    def __post_init__(self) -> None:
        for name in ("texts", "tokens"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} per batch {getattr(self, name)}: expected at least 1.")
        if not 0 <= self.padding <= 1:
            raise UsageError(f"padding per batch {self.padding}: expected 0 to 1.")

    def allow(self, count: int, longest: int, tokens: int) -> bool:
        """Whether a batch of `count` texts fits, of which one has `longest` tokens, and all together `tokens`."""
        padded = count * longest
        return (
            count <= self.texts
            and padded <= self.tokens
            and padded - tokens <= max(self.padding * padded, FREE_PADDING)
        )


def next_batch(lengths: Sequence[int], limits: BatchLimits) -> list[int]:
    """Choose from texts of `lengths` tokens, oldest first: their places, in order, always with 0 among them.

    The batch starts with the oldest text and takes the one closest in length, shorter or longer, as long as `limits`
    allow it. As the oldest is in every batch, a text waits at most for as many batches as there are texts before it.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)  # stable: equal lengths stay in the order of arrival
    low = high = order.index(0)
    total = longest = lengths[0]
    while True:
        count = high - low + 2
        found = []  # padding with a neighbour (but for a constant), its place in `order`, longest with it
        for place in (low - 1, high + 1):
            if 0 <= place < len(order):
                length = lengths[order[place]]
                widest = max(longest, length)
                if limits.allow(count, widest, total + length):
                    found.append((count * widest - length, place, widest))
        if not found:
            return sorted(order[low : high + 1])
        _, place, longest = min(found)
        total += lengths[order[place]]
        low, high = min(low, place), max(high, place)
