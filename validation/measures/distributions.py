"""Differences of next-token distributions between two models, summed over tokens."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from operator import add

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]

SCORED_VALUES = 1 << 20  # logits per step; their float64 copies take 8 bytes each


@dataclass
class Sums:
    """Sums over tokens. Losses and divergences are in nats."""

    tokens: int = 0
    targets: int = 0  # of them, tokens with a known target
    loss: float = 0.0  # -log probability of the targets
    against_loss: float = 0.0
    divergence: float = 0.0  # KL(other ‖ this one)
    same_top: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(*map(add, astuple(self), astuple(other)))

    def add(
        self,
        logits: Floats,
        against: Floats | None = None,
        targets: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """Score logits [tokens, vocabulary], a few rows at a time, against another model's and the target tokens."""
        rows = max(1, SCORED_VALUES // logits.shape[-1])
        for start in range(0, len(logits), rows):
            part = slice(start, start + rows)
            self._add(
                logits[part],
                against[part] if against is not None else None,
                targets[part] if targets is not None else None,
            )

    def _add(self, logits: Floats, against: Floats | None, targets: npt.NDArray[np.int64] | None) -> None:
        places = np.arange(len(logits))
        found = log_softmax(logits)
        self.tokens += len(logits)
        if targets is not None:
            self.targets += len(targets)
            self.loss -= float(found[places, targets].sum())
        if against is None:
            return
        wanted = log_softmax(against)
        if targets is not None:
            self.against_loss -= float(wanted[places, targets].sum())
        self.divergence += float((np.exp(wanted) * (wanted - found)).sum())
        self.same_top += int((logits.argmax(axis=-1) == against.argmax(axis=-1)).sum())

    @property
    def perplexity(self) -> float:
        """exp of the mean loss; infinity on overflow."""
        return _exp(self.loss / self.targets)

    @property
    def against_perplexity(self) -> float:
        """The same for the other model."""
        return _exp(self.against_loss / self.targets)

    @property
    def kl_divergence(self) -> float:
        """Mean divergence in nats per token, at least 0 (rounding can make a tiny one negative)."""
        mean = self.divergence / self.tokens
        return mean if math.isnan(mean) else max(0.0, mean)


def perplexity_rise(perplexity: float, against: float) -> float:
    """The increase of a perplexity over another one, in percent."""
    return 100 * (perplexity / against - 1)


def log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    """Logarithms of the probabilities, float64, over the last axis of `logits`."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _exp(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(value))
