"""The maximum tokens of a step: by memory, by the engine's profile, and by the space in the cache."""

from __future__ import annotations

from collections.abc import Iterable

from intaglio.bundle.bundle import Axis, Decoder
from intaglio.errors import UsageError
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.sessions.draft_inputs import drafted
from intaglio.runtime.sessions.step import CAPACITY, TOKENS, WANTED

PREFILL_TOKENS = 512  # prompt tokens per step; bounds the memory of attention scores


class StepLimits:
    """The limits of an engine's steps. A step is as wide as its widest row; shorter rows get dummy tokens after theirs.

    `slots`: the length of the engine's caches if it is fixed, as with TensorRT; None: they grow.
    """

    def __init__(self, engine: Engine, decoder: Decoder):
        self._decoder = decoder
        self._tokens, self._wanted, self.slots = (
            engine.axes.get(name, Axis()).maximum for name in (TOKENS, WANTED, CAPACITY)
        )

    def max_tokens(self, limit: int) -> int:
        """The maximum length of a sequence, at most `limit`."""
        return limit if self.slots is None else max(min(limit, self.slots - drafted(self._decoder, 1)), 1)

    def widest(self, lengths: Iterable[int]) -> int:
        """The maximum tokens of a step, for rows that hold `lengths`."""
        widest = min(PREFILL_TOKENS, self._tokens or PREFILL_TOKENS)
        if self.slots is None:
            return widest
        return min(widest, max(self.slots - max(lengths, default=0) - drafted(self._decoder, 1), 1))

    def tree(self, length: int, origins: int) -> int:
        """The maximum tokens of a tree after `length` others, at least 1; it drafts after at most `origins` of them."""
        limits = [limit for limit in (self._tokens, self._wanted) if limit is not None]
        if self.slots is not None:
            free, behind = self.slots - length, drafted(self._decoder, 1)
            # The second: fewer tokens, with drafts after all of them.
            limits.append(max(free - behind * origins, free // (1 + behind)))
        return max(min(limits, default=PREFILL_TOKENS), 1)

    def check_slots(self, slots: int) -> None:
        """Raise `UsageError` if the engine's caches are shorter than `slots`."""
        if self.slots is not None and slots > self.slots:
            raise UsageError(f"{slots} cache slots are needed, the engine has {self.slots}. Build one with more.")
