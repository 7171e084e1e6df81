"""The rows of a cache: how many tokens each holds, and how some of them are forgotten, moved or copied."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import numpy as np
import numpy.typing as npt

from intaglio.bundle import Decoder
from intaglio.errors import UsageError
from intaglio.runtime.sessions.cache import KeyValueCache


class CachedRows:
    """Sequences of a batch, a row each. What lies in a row's slots beyond its length has no meaning."""

    def __init__(self, cache: KeyValueCache, decoder: Decoder, batch: int, limit: int):
        """`limit`: the most tokens of a sequence."""
        self.cache, self.decoder, self.batch, self.limit = cache, decoder, batch, limit
        self.lengths = [0] * batch  # tokens that the cache holds of each row

    @property
    def capacity(self) -> int:
        """The slots that the cache has for each sequence."""
        return self.cache.capacity

    def rollback(self, lengths: npt.ArrayLike) -> None:
        """Forget what the rows hold beyond `lengths`, [batch] or one for all. Raises `UsageError` if it is more."""
        wanted = np.broadcast_to(np.asarray(lengths, np.int64), (self.batch,)).tolist()
        if any(not 0 <= less <= length for less, length in zip(wanted, self.lengths, strict=True)):
            raise UsageError(f"rollback to {wanted} tokens: the cache holds {self.lengths}.")
        self.lengths = wanted

    def truncate(self, row: int, length: int) -> None:
        """Forget what `row` holds beyond `length` tokens, if it holds more."""
        self.lengths[row] = min(self.lengths[row], length)

    def keep(self, row: int, start: int, places: Sequence[int]) -> None:
        """Keep the tokens at `start` + `places`, ascending, of what `row` holds from `start` on, and forget the others.

        They move up behind each other in the cache, which stays where it is.
        """
        self.cache.keep(row, start, places)
        self.lengths[row] = start + len(places)

    def copy(self, source: int, row: int, length: int) -> None:
        """Let `row` hold the first `length` tokens of the row `source`, and nothing else."""
        if not 0 <= length <= self.lengths[source]:
            raise UsageError(f"copy of {length} tokens: row {source} holds {self.lengths[source]}.")
        self.cache.copy(source, row, length, self.decoder.layers)
        self.lengths[row] = length

    def check_ids(self, least: int, greatest: int) -> None:
        """Raise `UsageError` for token ids outside of the vocabulary."""
        if least < 0 or greatest >= self.decoder.vocab_size:
            raise UsageError(f"token ids {least} to {greatest}: expected 0 to {self.decoder.vocab_size - 1}.")

    def check_lengths(self, more: Sequence[int]) -> None:
        """Raise `UsageError` where a row would be longer than the limit with `more` [batch] tokens."""
        longest = max(map(add, self.lengths, more))
        if longest > self.limit:
            which = "model's" if self.limit == self.decoder.max_positions else "cache's"
            raise UsageError(
                f"sequence of {longest} tokens, the {which} limit is {self.limit}. Shorten the prompt, or ask for less."
            )


def taking_part(counts: Sequence[int]) -> range:
    """The rows from the first to the last that get tokens; those between get some that are not real."""
    if all(counts) or not any(counts):
        return range(len(counts))
    rows = [row for row, count in enumerate(counts) if count]
    return range(rows[0], rows[-1] + 1)
