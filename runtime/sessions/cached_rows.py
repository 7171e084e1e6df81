"""The rows of a cache: the number of tokens of each, and truncating, moving and copying them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import numpy as np
import numpy.typing as npt

from intaglio.bundle.bundle import Decoder
from intaglio.errors import UsageError
from intaglio.runtime.sessions.key_value_cache import KeyValueCache


class CachedRows:
    """Sequences of a batch, a row each. The slots of a row beyond its length have no meaning."""

    def __init__(self, cache: KeyValueCache, decoder: Decoder, batch: int, limit: int):
        """`limit`: maximum tokens of a sequence."""
        self.cache, self.decoder, self.batch, self.limit = cache, decoder, batch, limit
        self.lengths = [0] * batch  # cached tokens of each row

    @property
    def capacity(self) -> int:
        """Number of slots of each sequence."""
        return self.cache.capacity

    def rollback(self, lengths: npt.ArrayLike) -> None:
        """Truncate the rows to `lengths`, [batch] or one for all. Raises `UsageError` for rows that are shorter."""
        wanted = np.broadcast_to(np.asarray(lengths, np.int64), (self.batch,)).tolist()
        if any(not 0 <= less <= length for less, length in zip(wanted, self.lengths, strict=True)):
            raise UsageError(f"rollback to {wanted} tokens: the cache holds {self.lengths}.")
        self.lengths = wanted

    def truncate(self, row: int, length: int) -> None:
        """Truncate `row` to at most `length` tokens."""
        self.lengths[row] = min(self.lengths[row], length)

    def keep(self, row: int, start: int, places: Sequence[int]) -> None:
        """Of the tokens of `row` from `start` on, keep those at `start` + `places`, ascending, and remove the others.

        The kept tokens become contiguous in the cache, which stays where it is.
        """
        self.cache.keep(row, start, places)
        self.lengths[row] = start + len(places)

    def copy(self, source: int, row: int, length: int) -> None:
        """Replace the tokens of `row` by the first `length` tokens of the row `source`."""
        if not 0 <= length <= self.lengths[source]:
            raise UsageError(f"copy of {length} tokens: row {source} holds {self.lengths[source]}.")
        self.cache.copy(source, row, length, len(self.decoder.layer_caches))
        self.lengths[row] = length

    def check_ids(self, least: int, greatest: int, images: int = 0) -> None:
        """Raise `UsageError` for token ids outside of the vocabulary and the `images` rows behind it."""
        if least < 0 or greatest >= self.decoder.vocab_size + images:
            raise UsageError(f"token ids {least} to {greatest}: expected 0 to {self.decoder.vocab_size - 1}.")

    def check_lengths(self, more: Sequence[int]) -> None:
        """Raise `UsageError` where a row would be longer than the limit with `more` [batch] tokens."""
        longest = max(map(add, self.lengths, more))
        if longest > self.limit:
            which = "model's" if self.limit == self.decoder.max_positions else "cache's"
            raise UsageError(
                f"sequence of {longest} tokens, the {which} limit is {self.limit}. "
                "Shorten the prompt, or generate fewer tokens."
            )


def active_rows(counts: Sequence[int]) -> range:
    """The rows from the first to the last with new tokens; rows between them without any get dummy tokens."""
    if all(counts) or not any(counts):
        return range(len(counts))
    rows = [row for row, count in enumerate(counts) if count]
    return range(rows[0], rows[-1] + 1)
