"""What drafting can win: predicted from the measured times of the models' steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from intaglio.runtime.decoder import DecoderSession

LONGEST = 12  # drafted tokens up to which steps of the large model are measured
CONTEXT = 32  # tokens that the caches hold meanwhile
REPEATS = 5


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a model's steps, for as many texts side by side as it was opened for."""

    small: float  # one token of what drafts; 0 where that is not a model
    large: tuple[float, ...]  # 1, 2, 3, ... tokens of the large model at once

    @classmethod
    def measure(cls, large: DecoderSession, small: DecoderSession | None, longest: int = LONGEST) -> StepTimes:
        """Measure in a fraction of a second, medians; the caches are empty afterwards.

        `longest`: drafted tokens, at most so many as the models' limits leave room for.
        """
        limit = min(session.limit for session in (large, small) if session)
        context = min(CONTEXT, max(limit - longest - 1, 1))
        longest = max(min(longest, limit - context - 1), 0)
        drafting = _median(small, context, 1) if small else 0.0
        return cls(drafting, tuple(_median(large, context, tokens) for tokens in range(1, longest + 2)))

    @property
    def longest(self) -> int:
        """The longest draft whose review was measured, in tokens."""
        return len(self.large) - 1

    def speedup(self, acceptance: float, window: int) -> float:
        """How many times as fast as the large model alone drafting is expected to write.

        `acceptance`: the probability that a drafted token is kept, each on its own; `window`: tokens drafted at a time,
        0 for none. A draft then gives (1 - a^(w+1)) / (1 - a) tokens (Leviathan et al. 2023, equation 1), in the time
        of w small steps and one large step of w + 1 tokens.
        """
        tokens = sum(acceptance**place for place in range(window + 1))
        return tokens * self.large[0] / (window * self.small + self.large[window])

    def best_window(self, acceptance: float) -> int:
        """The window of the highest speedup at an acceptance: 0 where drafting cannot win."""
        return max(range(self.longest + 1), key=lambda window: self.speedup(acceptance, window))


def _median(session: DecoderSession, context: int, tokens: int) -> float:
    """Seconds of a step of so many tokens after `context` others, in each text of the batch."""
    session.rollback(0)
    session.append([[0] * context] * session.batch, [1] * session.batch)

    def step() -> None:
        for row in range(session.batch):
            session.truncate(row, context)
        session.append([[0] * tokens] * session.batch, [tokens] * session.batch)

    step()  # the first time binds buffers
    seconds = statistics.median(_timed(step) for _ in range(REPEATS))
    session.rollback(0)
    return seconds


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
