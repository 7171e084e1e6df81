"""What drafting can win: predicted from the measured times of the models' steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from intaglio.runtime.sessions.decoder import DecoderSession

LONGEST = 12  # drafted tokens up to which steps of the large model are measured
CONTEXT = 32  # tokens that the caches hold meanwhile
REPEATS = 5
SLACK = 1.25  # by how much a step's time may be off what the steps beside it allow, before it is measured again
ROUNDS = 4  # of measuring, at most


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
        drafting = _step_times(small, context, min(longest + 1, 2))[0] if small else 0.0
        return cls(drafting, _step_times(large, context, longest + 1))

    @property
    def longest(self) -> int:
        """The longest draft whose review was measured, in tokens."""
        return len(self.large) - 1

    def speedup(self, chances: Sequence[float]) -> float:
        """How many times as fast as the large model alone drafting is expected to write.

        `chances`: of each drafted token, the probability that it is kept, and so those before it. Such a draft gives
        1 + their sum tokens, in the time of as many small steps and one large step of one token more. It is never more
        than those tokens, as a pass with drafts takes at least as long as one without, whatever was measured.
        """
        drafted = len(chances)
        slower = max(drafted * self.small + self.large[drafted], self.large[0])
        return (1 + sum(chances)) * self.large[0] / slower

    def best_window(self, chances: Sequence[float]) -> int:
        """How many of the first tokens of a draft to review for the highest speedup: 0 where drafting cannot win."""
        return max(range(min(len(chances), self.longest) + 1), key=lambda window: self.speedup(chances[:window]))

    def kept_alike(self, acceptance: float) -> list[float]:
        """The chances in the longest draft, where each token is kept with one probability once those before it are.

        1 and the first w of them add up to (1 - a^(w+1)) / (1 - a), equation 1 of Leviathan et al. 2023.
        """
        return [acceptance**place for place in range(1, self.longest + 1)]


def _step_times(session: DecoderSession, context: int, longest: int) -> tuple[float, ...]:
    """Seconds of a step of 1, 2, ... `longest` tokens after `context` others, in each text of the batch; medians.

    Steps whose times cannot be are measured again, a bounded number of times: another program may have run meanwhile.
    """
    times = [0.0] * longest
    doubtful = list(range(1, longest + 1))
    for _ in range(ROUNDS):
        for tokens in doubtful:
            times[tokens - 1] = _median(session, context, tokens)
        doubtful = implausible(times)
        if not doubtful:
            break
    return tuple(times)


def implausible(times: Sequence[float]) -> list[int]:
    """The numbers of tokens, from 1 on, whose step may have been measured wrongly; `times`: of 1, 2, 3, ... tokens.

    A step takes no longer than one of a token more, and no longer than one of a token less and another of one token.
    Where that does not hold by far, each of the steps may be the one that is wrong.
    """
    found: set[int] = set()
    for tokens, (less, more) in enumerate(pairwise(times), 1):
        if less > SLACK * more:
            found |= {tokens, tokens + 1}
        if more > SLACK * (less + times[0]):
            found |= {1, tokens, tokens + 1}
    return sorted(found)


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
