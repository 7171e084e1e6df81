"""Choose the next token from logits: the most probable one, or one drawn from a filtered distribution.

The filters are applied in the order of `transformers`: repetition penalty, temperature, top-k, top-p, min-p. The
presence and frequency penalties and the logit bias, of OpenAI's API, come after the repetition penalty. From the
temperature on, plugins/native/token_choice computes, in float32 and integers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from intaglio.errors import EngineError, UsageError
from intaglio.plugins.native import token_choice
from intaglio.plugins.native.token_choice import DRAW_BITS, Filters
from intaglio.runtime.sampling.constraint import LogitConstraint, constrained, masking_memory

Logits = npt.NDArray[np.floating]
Probabilities = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.intp]

LEAST_TEMPERATURE = 1e-5  # below, logits divided by it overflow, and the text is greedy
GROUP = 16  # scores per group; the first search for the top k looks only at the largest of each group


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters; greedy by default. Raises `UsageError` for values out of range."""

    temperature: float = 0.0  # the logits are divided by it; 0, or below `LEAST_TEMPERATURE`: greedy
    top_k: int = 0  # only the k most probable tokens, and ties with the last of them; 0: all
    top_p: float = 1.0  # only the most probable tokens with this total probability, and ties with the last of them
    min_p: float = 0.0  # only tokens of at least this fraction of the highest probability
    repetition_penalty: float = 1.0  # divides positive logits of tokens that occurred, multiplies negative ones
    presence_penalty: float = 0.0  # subtracted from the logits of tokens that were generated; those of the prompt not
    frequency_penalty: float = 0.0  # subtracted once for each time that a token was generated
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)  # token id -> what its logit gains

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        checks = (
            ("temperature", self.temperature, 0 <= self.temperature < float("inf"), "0 or more"),
            ("top-k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top-p", self.top_p, 0 <= self.top_p <= 1, "0 to 1"),
            ("min-p", self.min_p, 0 <= self.min_p <= 1, "0 to 1"),
            ("repetition penalty", self.repetition_penalty, 0 < self.repetition_penalty < float("inf"), "more than 0"),
            ("presence penalty", self.presence_penalty, -2 <= self.presence_penalty <= 2, "-2 to 2"),
            ("frequency penalty", self.frequency_penalty, -2 <= self.frequency_penalty <= 2, "-2 to 2"),
            *(
                (f"logit bias of token {token} is", bias, -100 <= bias <= 100, "-100 to 100")
                for token, bias in self.logit_bias.items()
            ),
        )
        for name, value, good, expected in checks:
            if not good:
                raise UsageError(f"{name} {value}: expected {expected}.")

    @property
    def greedy(self) -> bool:
        """Whether tokens are chosen without randomness."""
        return self.temperature < LEAST_TEMPERATURE

    @property
    def penalises(self) -> bool:
        """Whether logits are changed before a token is chosen."""
        penalties = (self.repetition_penalty != 1, self.presence_penalty != 0, self.frequency_penalty != 0)
        return any(penalties) or bool(self.logit_bias)

    @cached_property
    def bias(self) -> tuple[Tokens, npt.NDArray[np.float32]]:
        """The token ids of `logit_bias`, and what is added to their logits."""
        return np.array(list(self.logit_bias), np.intp), np.array(list(self.logit_bias.values()), np.float32)

    @cached_property
    def filters(self) -> Filters:
        """The filters after the penalties, unless `greedy`."""
        return Filters.of(self.temperature, self.top_k, self.top_p, self.min_p)

    def check_vocabulary(self, size: int) -> None:
        """Raise `UsageError` where `logit_bias` has a token id outside of a vocabulary of this size."""
        if (unknown := next((token for token in self.logit_bias if not 0 <= token < size), None)) is not None:
            raise UsageError(f"logit bias: token id {unknown} is not in the vocabulary, expected 0 to {size - 1}.")


class Sampler:
    """Chooses tokens; the same `seed` and logits give the same tokens. Without a seed each sampler differs."""

    def __init__(
        self,
        sampling: Sampling,
        seed: int | Sequence[int] | None = None,
        constraint: LogitConstraint | None = None,
        prompt_tokens: int = 0,
    ):
        """`constraint`: which tokens may be chosen.

        `prompt_tokens`: number of first tokens that it does not apply to, nor presence and frequency penalty.
        """
        self.sampling = sampling
        self._generator = np.random.default_rng(seed)
        self._constraint, self._prompt_tokens = constraint, prompt_tokens
        self._memory: Logits | None = None  # of constrained logits, reused by each call
        self._takes_highest = sampling.greedy and constraint is None and not sampling.penalises

    def choose(self, logits: Logits, seen: Sequence[int] = ()) -> int:
        """Choose the next token from logits [vocabulary]; `seen` are the tokens so far, prompt included."""
        if self._takes_highest:
            return best(logits)
        scores = self.penalised(logits, seen)
        top = best(scores)
        if self.sampling.greedy:
            return top
        draw = int(self._generator.random() * (1 << DRAW_BITS))
        return token_choice.choose(scores, self.sampling.filters, draw, scores.item(top))

    def distribution(self, logits: Logits, seen: Sequence[int] = ()) -> Probabilities:
        """Return the probabilities [vocabulary] that `choose` draws from; if greedy, one of them is 1."""
        return distribution(self._allowed(logits, seen), self.sampling, seen, self._prompt_tokens)

    def penalised(self, logits: Logits, seen: Sequence[int] = ()) -> Logits:
        """Return the logits [vocabulary] after the constraint, the penalties and the bias.

        If greedy, `choose` takes the highest of them. With a constraint, they are valid until the next call of the
        sampler, which reuses their memory.
        """
        return penalised(self._allowed(logits, seen), self.sampling, seen, self._prompt_tokens)

    def _allowed(self, logits: Logits, seen: Sequence[int]) -> Logits:
        if self._constraint is None:
            return logits
        if self._memory is None or len(self._memory) < len(logits):
            self._memory = masking_memory(logits)
        return constrained(logits, self._constraint, seen[self._prompt_tokens :], self._memory)

    def forced(self, seen: Sequence[int]) -> int | None:
        """Choose the next token without logits, if the constraint allows only one after `seen`."""
        token = self._constraint.forced(seen[self._prompt_tokens :]) if self._constraint is not None else None
        if token is not None and not self.sampling.greedy:
            self._generator.random()  # as `draw`, so that the next tokens are those that follow a token with logits
        return token

    def count_allowed(self, seen: Sequence[int], draft: Sequence[int]) -> int:
        """Return how many tokens of `draft`, from its first, the constraint allows after `seen`."""
        if self._constraint is None or not draft:
            return len(draft)
        return self._constraint.count_allowed(seen[self._prompt_tokens :], draft)

    def finished(self, seen: Sequence[int]) -> bool:
        """Whether the constraint ends the text after `seen`, the tokens so far, prompt included."""
        return self._constraint is not None and self._constraint.finished(seen[self._prompt_tokens :])

    def uniform(self) -> float:
        """Draw a number in [0, 1); 0.5 if greedy."""
        return 0.5 if self.sampling.greedy else float(self._generator.random())

    def draw(self, probabilities: Probabilities) -> int:
        """Draw a token from probabilities [vocabulary], which need not add up to exactly 1."""
        tokens = np.flatnonzero(probabilities)
        cumulative = np.cumsum(probabilities[tokens])
        place = self._generator.random() * cumulative[-1]
        return int(tokens[min(int(np.searchsorted(cumulative, place, side="right")), len(tokens) - 1)])


def best(logits: Logits) -> int:
    """Return the token with the highest of logits [vocabulary], the first of equals. Raises `EngineError` for NaN."""
    token = int(logits.argmax())  # the first NaN, if there is one
    if not math.isfinite(logits.item(token)):
        raise EngineError("the model returns NaN or infinite logits. It overflows: use another bundle or dtype.")
    return token


def softmax(logits: Logits) -> npt.NDArray[np.floating]:
    """Return the probabilities for logits [vocabulary], before any filter."""
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def likeliest(logits: Logits, count: int) -> tuple[list[int], list[float]]:
    """Return the `count` most probable tokens for logits [vocabulary], in descending order, and their probabilities.

    Raises `EngineError` for NaN.
    """
    highest = logits[best(logits)]
    tokens = largest(logits, count)
    total = np.exp(logits - highest).sum()
    return tokens.tolist(), (np.exp(logits[tokens] - highest) / total).tolist()


def largest(logits: Logits, count: int) -> Tokens:
    """Return the `count` tokens, at least 1, with the highest of logits [vocabulary], in descending order."""
    tokens = np.flatnonzero(logits >= _kth_largest(logits, min(count, len(logits))))
    return tokens[np.argsort(-logits[tokens], kind="stable")][:count]


def largest_probability(logits: Logits) -> float:
    """Return the highest probability for logits [vocabulary], at a temperature of 1."""
    return float(1 / np.exp(logits - logits.max()).sum())


def surprise(logits: Logits, token: int) -> float:
    """Return -ln p(token) for logits [vocabulary], at a temperature of 1, in nats."""
    highest = logits.max()
    return float(np.log(np.exp(logits - highest).sum()) + (highest - logits[token]))


def distribution(logits: Logits, sampling: Sampling, seen: Sequence[int] = (), prompt_tokens: int = 0) -> Probabilities:
    """Return the probabilities [vocabulary] to draw tokens from, after all filters; at least one is above 0.

    `logits`: [vocabulary]; `seen`: the tokens so far, the first `prompt_tokens` of which were not generated. A
    temperature of 0 gives the most probable token 1. Raises `EngineError` for NaN.
    """
    scores = penalised(logits, sampling, seen, prompt_tokens)
    top = best(scores)
    if sampling.greedy:
        probabilities = np.zeros(len(scores))
        probabilities[top] = 1.0
        return probabilities
    weights = token_choice.weights(scores, sampling.filters, scores.item(top))
    return np.asarray(weights / weights.sum())


def penalised(logits: Logits, sampling: Sampling, seen: Sequence[int], prompt_tokens: int = 0) -> Logits:
    """Return logits [vocabulary] after the penalties for the tokens `seen` and the bias.

    The repetition penalty applies once to each token of `seen`, by CTRL's rule (Keskar et al. 2019). Presence and
    frequency penalty apply to those after the first `prompt_tokens`: a token generated n > 0 times loses
    presence + n · frequency (OpenAI's definition).
    """
    repeated = sampling.repetition_penalty != 1 and len(seen) > 0
    generated = len(seen) > prompt_tokens and (sampling.presence_penalty != 0 or sampling.frequency_penalty != 0)
    if not (repeated or generated or sampling.logit_bias):
        return logits
    logits = logits.copy()
    if repeated:
        tokens, penalty = np.asarray(seen), sampling.repetition_penalty
        logits[tokens] = np.where(logits[tokens] < 0, logits[tokens] * penalty, logits[tokens] / penalty)
    if generated:
        tokens, counts = np.unique(np.asarray(seen[prompt_tokens:]), return_counts=True)
        logits[tokens] -= sampling.presence_penalty + counts * sampling.frequency_penalty
    if sampling.logit_bias:
        biased, bias = sampling.bias
        logits[biased] += bias
    return logits


def _kth_largest(scores: Logits, k: int) -> np.floating:
    """Return the k-th largest of `scores` [n], k ≤ n, without partitioning all of them."""
    groups = len(scores) // GROUP
    if k < groups:
        # k groups have a maximum of at least `bound`, so the k largest scores are not below it.
        bound = np.partition(scores[: groups * GROUP].reshape(GROUP, groups).max(axis=0), -k)[-k]
        scores = scores[scores >= bound]
    return np.partition(scores, -k)[-k]  # type: ignore[no-any-return]
