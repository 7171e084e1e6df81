"""The learning rate at each step: warm-up, hold, decay (thesis, section 5.3), and a cool-down to 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LearningRate:
    """Linear to `peak` over `warm_up` steps, constant for `hold` steps, then peak · warm_upᵈ / (t - hold)ᵈ.

    With `decay` d = 0.5 and no hold this is Noam annealing. In the last part `cool_down` of a training (0 to 1), the
    rate is also scaled linearly to 0: a short training ends before 1 / t is small.
    """

    peak: float
    warm_up: int
    hold: int
    decay: float = 1.0
    cool_down: float = 0.0

    def at(self, step: int, progress: float = 0.0) -> float:
        """The rate of step `step`, counted from 1; `progress`: the part of the training that is over, 0 to 1."""
        left = 1 - progress
        return self._before_cooling(step) * (left / self.cool_down if left < self.cool_down else 1.0)

    def _before_cooling(self, step: int) -> float:
        if step < self.warm_up:
            return self.peak * step / self.warm_up
        if step < self.warm_up + self.hold:
            return self.peak
        return self.peak * float((self.warm_up / (step - self.hold)) ** self.decay)
