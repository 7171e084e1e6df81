"""The number of tokens to draft at a time: fixed, adaptive, or by the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from intaglio.runtime.strategies.cost_model import StepTimes

FIRST, MOST = 5, 20  # tokens
FIRST_ACCEPTANCE = 0.7  # initial estimate of the acceptance rate
MEMORY = 0.9  # weight of the previous estimate in the running mean of the acceptance rate
LOOK_AGAIN = 32  # tokens without a draft after which a draft of one token is tried


def learn(chance: float, accepted: bool) -> float:
    """Update the estimated chance of acceptance with one observation: a running mean."""
    return MEMORY * chance + (1 - MEMORY) * accepted


class DraftWindow(Protocol):
    """Decides how many tokens to draft next in one sequence."""

    def size(self) -> int:
        """Return the number of tokens to draft now, 0 for none."""

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a verified draft."""


@dataclass
class FixedWindow:
    """A constant number of tokens."""

    tokens: int

    def size(self) -> int:
        """See `DraftWindow`."""
        return self.tokens

    def observe(self, drafted: int, accepted: int) -> None:
        """See `DraftWindow`."""


@dataclass
class AdaptiveWindow:
    """Two tokens more after a fully accepted draft, one less after any other."""

    tokens: int = FIRST

    def size(self) -> int:
        """See `DraftWindow`."""
        return self.tokens

    def observe(self, drafted: int, accepted: int) -> None:
        """See `DraftWindow`."""
        self.tokens = min(self.tokens + 2, MOST) if accepted == drafted else max(self.tokens - 1, 1)


@dataclass
class CostWindow:
    """The window with the highest speedup in the cost model, at the recent acceptance rate."""

    times: StepTimes
    acceptance: float = FIRST_ACCEPTANCE
    waited: int = 0  # tokens since the last draft

    def size(self) -> int:
        """See `DraftWindow`. If drafting could be faster at a higher acceptance rate, it is tried again at times."""
        if window := self.times.best_window(self.times.acceptance_powers(self.acceptance)):
            return window
        return int(self.waited >= LOOK_AGAIN and self.times.best_window(self.times.acceptance_powers(1.0)) > 0)

    def observe(self, drafted: int, accepted: int) -> None:
        """See `DraftWindow`. The first rejected token counts; those after it carry no information."""
        self.waited = 0 if drafted else self.waited + 1
        for place in range(min(accepted + 1, drafted)):
            self.acceptance = learn(self.acceptance, place < accepted)
