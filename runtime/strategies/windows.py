"""How many tokens to draft at a time: fixed, by a rule of thumb, or by the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from intaglio.runtime.strategies.cost_model import StepTimes

FIRST, MOST = 5, 20  # tokens
FIRST_ACCEPTANCE = 0.7  # what is thought of a draft model before anything is known of it
MEMORY = 0.9  # of how often drafts are kept: what an observation leaves of those before it
LOOK_AGAIN = 32  # tokens without a draft after which one of a single token is tried


def learn(chance: float, kept: bool) -> float:
    """What is thought of a chance once it was seen whether a drafted token was kept: a running mean."""
    return MEMORY * chance + (1 - MEMORY) * kept


class Window(Protocol):
    """The number of tokens to draft next, 0 for none, of one text."""

    def size(self) -> int:
        """Tokens to draft now."""
        ...

    def observe(self, drafted: int, kept: int) -> None:
        """Learn from a review."""
        ...


@dataclass
class FixedWindow:
    """Always the same."""

    tokens: int

    def size(self) -> int:
        """See `Window`."""
        return self.tokens

    def observe(self, drafted: int, kept: int) -> None:
        """See `Window`."""


@dataclass
class AdaptiveWindow:
    """Two tokens more after a draft that was kept whole, one less after any other."""

    tokens: int = FIRST

    def size(self) -> int:
        """See `Window`."""
        return self.tokens

    def observe(self, drafted: int, kept: int) -> None:
        """See `Window`."""
        self.tokens = min(self.tokens + 2, MOST) if kept == drafted else max(self.tokens - 1, 1)


@dataclass
class CostWindow:
    """The one that the cost model expects most of, at the acceptance that was seen lately."""

    times: StepTimes
    acceptance: float = FIRST_ACCEPTANCE
    waited: int = 0  # tokens since the last draft

    def size(self) -> int:
        """See `Window`. Where drafting could win with other texts, it is tried again now and then."""
        if window := self.times.best_window(self.times.kept_alike(self.acceptance)):
            return window
        return int(self.waited >= LOOK_AGAIN and self.times.best_window(self.times.kept_alike(1.0)) > 0)

    def observe(self, drafted: int, kept: int) -> None:
        """See `Window`. The token that was not kept counts, those after it say nothing."""
        self.waited = 0 if drafted else self.waited + 1
        for place in range(min(kept + 1, drafted)):
            self.acceptance = learn(self.acceptance, place < kept)
