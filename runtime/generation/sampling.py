"""From logits to the next token: the most probable one, or one drawn from a filtered distribution.

The filters come in the order of `transformers`: repetition penalty, temperature, top-k, top-p, min-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError, UsageError
from intaglio.runtime.generation.constraint import LogitConstraint, constrained

Logits = npt.NDArray[np.floating]
Probabilities = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.intp]

GROUP = 16  # scores of which only the largest is looked at in a first search for the top k


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; by default the most probable one is (greedy). Raises `UsageError` when out of range."""

    temperature: float = 0.0  # the logits are divided by it; 0: greedy
    top_k: int = 0  # only the k most probable tokens, and those as probable as the last of them; 0: all
    top_p: float = 1.0  # only the fewest tokens whose probabilities add up to it
    min_p: float = 0.0  # only tokens of at least this part of the highest probability
    repetition_penalty: float = 1.0  # tokens that occurred: positive logits are divided by it, negative multiplied

    def __post_init__(self) -> None:
        checks = (
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more"),
            ("top-k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top-p", self.top_p, 0 <= self.top_p <= 1, "0 to 1"),
            ("min-p", self.min_p, 0 <= self.min_p <= 1, "0 to 1"),
            ("repetition penalty", self.repetition_penalty, 0 < self.repetition_penalty < float("inf"), "more than 0"),
        )
        for name, value, good, expected in checks:
            if not good:
                raise UsageError(f"{name} {value}: expected {expected}.")

    @property
    def greedy(self) -> bool:
        """True where nothing is left to chance."""
        return self.temperature == 0


class Sampler:
    """Chooses tokens; the same `seed` and logits give the same tokens. Without a seed each sampler draws others."""

    def __init__(
        self,
        sampling: Sampling,
        seed: int | Sequence[int] | None = None,
        constraint: LogitConstraint | None = None,
        prompt_tokens: int = 0,
    ):
        """`constraint`: which tokens may be chosen; `prompt_tokens`: how many of the tokens it is not asked about."""
        self.sampling = sampling
        self._generator = np.random.default_rng(seed)
        self._constraint, self._prompt_tokens = constraint, prompt_tokens

    def choose(self, logits: Logits, seen: Sequence[int] = ()) -> int:
        """The next token for logits [vocabulary]; `seen` are the tokens so far, prompt included."""
        if not self.sampling.greedy:
            return self.draw(self.distribution(logits, seen))
        return best(self.penalised(logits, seen))

    def distribution(self, logits: Logits, seen: Sequence[int] = ()) -> Probabilities:
        """The probabilities [vocabulary] that `choose` draws from; where it is greedy, one of them is 1."""
        return distribution(self._allowed(logits, seen), self.sampling, seen)

    def penalised(self, logits: Logits, seen: Sequence[int] = ()) -> Logits:
        """Logits [vocabulary] after the constraint and the repetition penalty.

        Of these `choose` takes the highest where it is greedy.
        """
        return penalised(self._allowed(logits, seen), self.sampling.repetition_penalty, seen)

    def _allowed(self, logits: Logits, seen: Sequence[int]) -> Logits:
        if self._constraint is None:
            return logits
        return constrained(logits, self._constraint, seen[self._prompt_tokens :])

    def uniform(self) -> float:
        """A number from 0 to 1, 1 excluded; 0.5 where nothing is left to chance."""
        return 0.5 if self.sampling.greedy else float(self._generator.random())

    def draw(self, probabilities: Probabilities) -> int:
        """A token drawn from probabilities [vocabulary], which need not add up to exactly 1."""
        tokens = np.flatnonzero(probabilities)
        cumulative = np.cumsum(probabilities[tokens])
        place = self._generator.random() * cumulative[-1]
        return int(tokens[min(int(np.searchsorted(cumulative, place, side="right")), len(tokens) - 1)])


def best(logits: Logits) -> int:
    """The token of the highest of logits [vocabulary], the first of several. Raises `EngineError` for NaN."""
    token = int(logits.argmax())  # of the first NaN, where there is one
    if not np.isfinite(logits[token]):
        raise EngineError("the model gives NaN or infinite logits. Its weights overflow: use another bundle or dtype.")
    return token


def softmax(logits: Logits) -> npt.NDArray[np.floating]:
    """The probabilities for logits [vocabulary], before any filter."""
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def likeliest(logits: Logits, count: int) -> tuple[list[int], list[float]]:
    """The `count` most probable tokens for logits [vocabulary], the likeliest first, and their probabilities.

    Raises `EngineError` for NaN.
    """
    highest = logits[best(logits)]
    tokens = np.flatnonzero(logits >= _kth_largest(logits, min(count, len(logits))))
    tokens = tokens[np.argsort(-logits[tokens], kind="stable")][:count]
    total = np.exp(logits - highest).sum()
    return tokens.tolist(), (np.exp(logits[tokens] - highest) / total).tolist()


def largest_probability(logits: Logits) -> float:
    """The probability of the most probable token for logits [vocabulary], at a temperature of 1."""
    return float(1 / np.exp(logits - logits.max()).sum())


def surprise(logits: Logits, token: int) -> float:
    """-ln p(token) for logits [vocabulary], at a temperature of 1, in nats."""
    highest = logits.max()
    return float(np.log(np.exp(logits - highest).sum()) + (highest - logits[token]))


def distribution(logits: Logits, sampling: Sampling, seen: Sequence[int] = ()) -> Probabilities:
    """The probabilities [vocabulary] that tokens are drawn from, after every filter; at least one is above 0.

    `logits`: [vocabulary]; `seen`: the tokens so far. A temperature of 0 gives the most probable token 1.
    Raises `EngineError` for NaN.
    """
    scores = penalised(logits, sampling.repetition_penalty, seen)
    top = best(scores)
    probabilities = np.zeros(len(scores))
    if sampling.greedy:
        probabilities[top] = 1.0
        return probabilities
    tokens: Tokens = np.arange(len(scores))
    if 0 < sampling.top_k < len(scores):
        tokens = np.flatnonzero(scores >= _kth_largest(scores, sampling.top_k))
        scores = scores[tokens]
    # A vanishing temperature may make infinities here, whose exponential is the 0 that it should be.
    with np.errstate(over="ignore"):
        weights = np.exp((scores - scores.max()) / scores.dtype.type(sampling.temperature))
    if sampling.top_p < 1:
        chosen = _nucleus(weights / weights.sum(dtype=np.float64), sampling.top_p)
        tokens, weights = tokens[chosen], weights[chosen]
    if sampling.min_p > 0:
        weights[weights < sampling.min_p] = 0.0  # the highest is exactly 1
    probabilities[tokens] = weights / weights.sum(dtype=np.float64)
    return probabilities


def penalised(logits: Logits, penalty: float, seen: Sequence[int]) -> Logits:
    """Logits [vocabulary] with each token of `seen` made less probable, once, by CTRL's rule (Keskar et al. 2019)."""
    if penalty == 1 or not len(seen):
        return logits
    tokens = np.asarray(seen)
    logits = logits.copy()
    logits[tokens] = np.where(logits[tokens] < 0, logits[tokens] * penalty, logits[tokens] / penalty)
    return logits


def _kth_largest(scores: Logits, k: int) -> np.floating:
    """The k-th largest of `scores` [n], k ≤ n, found without a partition of all of them."""
    groups = len(scores) // GROUP
    if k < groups:
        # k groups have a largest score of at least `bound`, so that the k largest of all are not below it.
        bound = np.partition(scores[: groups * GROUP].reshape(GROUP, groups).max(axis=0), -k)[-k]
        scores = scores[scores >= bound]
    return np.partition(scores, -k)[-k]  # type: ignore[no-any-return]


def _nucleus(probabilities: Probabilities, top_p: float) -> Tokens:
    """Indices of the fewest `probabilities` [n] that add up to `top_p`, one at least; of equal ones the first."""
    # Tokens of at most (1 - top_p) / n cannot be in it, as all of them together are at most 1 - top_p: most of a
    # vocabulary need not be sorted.
    floor = min((1 - top_p) / len(probabilities), probabilities.max())
    likely = np.flatnonzero(probabilities >= floor)
    likely = likely[np.argsort(-probabilities[likely], kind="stable")]
    enough = int(np.searchsorted(np.cumsum(probabilities[likely]), top_p))  # how many fall short of top_p
    return likely[: enough + 1]
