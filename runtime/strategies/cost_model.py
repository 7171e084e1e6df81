"""The cost model: the speedup of drafting, predicted from measured step times of the models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from intaglio.runtime.sampling.likelihood import best
from intaglio.runtime.sessions.decoder import DecoderSession

LONGEST = 12  # maximum draft tokens for which steps of the target model are measured
CONTEXT = 32  # tokens in the caches during the measurement
REPEATS = 5
SLACK = 1.25  # factor by which a time may be inconsistent with its neighbours before it is measured again
ROUNDS = 4  # maximum rounds of measurements


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step of the models, at the batch size they were opened with."""

    draft: float  # a step of the draft model; 0 without one
    target: tuple[float, ...]  # 1, 2, 3, ... tokens of the target model at once

    @classmethod
    def measure(cls, target: DecoderSession, draft: DecoderSession | None, longest: int = LONGEST) -> StepTimes:
        """Measure the median step times, in a fraction of a second; the caches are empty afterwards.

        `longest`: maximum draft tokens, reduced to fit the models' limits.
        """
        limit = min(session.limit for session in (target, draft) if session)
        context = min(CONTEXT, max(limit - longest - 1, 1))
        longest = max(min(longest, limit - context - 1), 0)
        drafting = _step_times(draft, context, min(longest + 1, 2))[0] if draft else 0.0
        return cls(drafting, _step_times(target, context, longest + 1))

    @property
    def longest(self) -> int:
        """The longest measured draft, in tokens."""
        return len(self.target) - 1

    def speedup(self, chances: Sequence[float]) -> float:
        """Return the expected speedup of a draft over the target model alone.

        `chances`: for each of the n draft tokens, the probability that it and all before it are accepted. The draft
        gives 1 + sum(chances) tokens, in the time of n draft steps and one target step over n + 1 tokens. The speedup
        is at most 1 + sum(chances): a pass with drafts takes at least as long as one without.
        """
        drafted = len(chances)
        slower = max(drafted * self.draft + self.target[drafted], self.target[0])
        return (1 + sum(chances)) * self.target[0] / slower

    def best_window(self, chances: Sequence[float]) -> int:
        """Return how many of the first draft tokens to verify for the highest speedup: 0 if drafting is slower."""
        return max(range(min(len(chances), self.longest) + 1), key=lambda window: self.speedup(chances[:window]))

    def acceptance_powers(self, acceptance: float) -> list[float]:
        """Return the powers of an acceptance rate: the chances in the longest draft, if the rate is constant.

        1 plus the sum of the first w is (1 - a^(w+1)) / (1 - a), equation 1 of Leviathan et al. 2023.
        """
        return [acceptance**place for place in range(1, self.longest + 1)]


def _step_times(session: DecoderSession, context: int, longest: int) -> tuple[float, ...]:
    """Measure the median seconds of a step of 1, 2, ... `longest` tokens after `context` others, in each row.

    Implausible times are measured again, up to `ROUNDS` times: another program may have been running.
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
    """Return the numbers of tokens whose step time may be wrong; `times`: of steps of 1, 2, 3, ... tokens.

    A step of n tokens takes at most as long as one of n + 1, and at most as long as a step of n - 1 plus a step of 1.
    If that is violated by more than `SLACK`, any of these steps may be the wrong one.
    """
    found: set[int] = set()
    for tokens, (less, more) in enumerate(pairwise(times), 1):
        if less > SLACK * more:
            found |= {tokens, tokens + 1}
        if more > SLACK * (less + times[0]):
            found |= {1, tokens, tokens + 1}
    return sorted(found)


def _median(session: DecoderSession, context: int, tokens: int) -> float:
    """Measure the median seconds of a step of `tokens` tokens after `context` others, in each row."""
    session.rollback(0)
    session.append([[0] * context] * session.batch, [1] * session.batch)

    def step() -> None:
        for row in range(session.batch):
            session.truncate(row, context)
        for logits in session.append_uncopied([[0] * tokens] * session.batch, [tokens] * session.batch):
            best(logits[-1])  # what is asked of a GPU has come from there

    step()  # the first time binds buffers
    seconds = statistics.median(_timed(step) for _ in range(REPEATS))
    session.rollback(0)
    return seconds


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
