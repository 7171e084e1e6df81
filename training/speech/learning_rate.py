"""The learning rate at each step: warm-up, hold, decay (thesis, section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LearningRate:
    """Linear to `peak` over `warm_up` steps, constant for `hold` steps, then peak · warm_upᵈ / (t - hold)ᵈ.

    With `decay` d = 0.5 and no hold this is Noam annealing.
    """

    peak: float
    warm_up: int
    hold: int
    decay: float = 1.0

    def at(self, step: int) -> float:
        """The rate of step `step`, counted from 1."""
        if step < self.warm_up:
            return self.peak * step / self.warm_up
        if step < self.warm_up + self.hold:
            return self.peak
        return self.peak * float((self.warm_up / (step - self.hold)) ** self.decay)
