"""Choose the next token from logits: the most probable one, or one drawn from a filtered distribution.

The filters are applied in the order of `transformers`: repetition penalty, temperature, top-k, top-p, min-p. The
presence and frequency penalties and the logit bias, of OpenAI's API, come after the repetition penalty. From the
temperature on, plugins/native/token_choice computes, in float32 and integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from intaglio.errors import UsageError
from intaglio.plugins.native import token_choice
from intaglio.plugins.native.token_choice import DRAW_BITS, Filters
from intaglio.plugins.native.token_choice.edits import EDIT, Edits, edited
from intaglio.plugins.native.token_choice.settings import HIGHEST, Choice
from intaglio.runtime.sampling.constraint import LogitConstraint, allowed_octets, constrained, masking_memory
from intaglio.runtime.sampling.likelihood import best
from intaglio.runtime.sessions.device_distribution import DeviceDistribution
from intaglio.runtime.sessions.device_logits import DeviceLogits
from intaglio.runtime.sessions.token_chooser import checked

Logits = npt.NDArray[np.floating]
Probabilities = npt.NDArray[np.float64]
Distribution = Probabilities | DeviceDistribution
Tokens = npt.NDArray[np.intp]

LEAST_TEMPERATURE = 1e-5  # below, the text is greedy
NO_EDITS: Edits = np.zeros(0, EDIT)


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
        """The token ids of `logit_bias`, in ascending order, and what is added to their logits."""
        tokens = sorted(self.logit_bias)
        return np.array(tokens, np.intp), np.array([self.logit_bias[token] for token in tokens], np.float32)

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
        self.takes_highest = sampling.greedy and constraint is None and not sampling.penalises

    def choose(self, logits: Logits | DeviceLogits, seen: Sequence[int] = ()) -> int:
        """Choose the next token from logits [vocabulary]; `seen` are the tokens so far, prompt included."""
        if self.takes_highest:
            return best(logits)
        if isinstance(logits, DeviceLogits):
            return checked(logits.choose(self.choice(len(logits), seen)) if logits.chosen is None else logits.chosen)
        scores = np.asarray(self.penalised(logits, seen))
        top = best(scores)
        if self.sampling.greedy:
            return top
        return token_choice.choose(scores, self.sampling.filters, self._random_bits(), scores.item(top))

    def choice(self, vocabulary: int, seen: Sequence[int], draws: bool = True) -> Choice:
        """What `choose` will do after the tokens `seen`, for a GPU; with its random number, if it `draws`."""
        sampling, octets = self.sampling, None
        if self._constraint is not None:
            octets = allowed_octets(vocabulary, self._constraint, seen[self._prompt_tokens :])
        edits = edits_of(sampling, seen, self._prompt_tokens)
        filters, draws = (HIGHEST, False) if sampling.greedy else (sampling.filters, draws)
        draw = self._random_bits() if draws else 0
        return Choice(octets, edits, sampling.repetition_penalty, filters, draw)

    def _random_bits(self) -> int:
        return int(self._generator.random() * (1 << DRAW_BITS))

    def distribution(self, logits: Logits | DeviceLogits, seen: Sequence[int] = ()) -> Distribution:
        """Return the probabilities [vocabulary] that `choose` draws from; if greedy, one of them is 1."""
        if isinstance(logits, DeviceLogits) and not self.sampling.greedy:
            return logits.distribution(self.choice(len(logits), seen, draws=False))
        return distribution(self._allowed(np.asarray(logits), seen), self.sampling, seen, self._prompt_tokens)

    def propose(self, logits: Logits | DeviceLogits, seen: Sequence[int] = ()) -> tuple[int, Distribution | None]:
        """Choose a token as `choose` does; return it with the `distribution` that it was drawn from, None if greedy."""
        if self.sampling.greedy:
            return self.choose(logits, seen), None
        probabilities = self.distribution(logits, seen)
        return self.draw(probabilities), probabilities

    def penalised(self, logits: Logits | DeviceLogits, seen: Sequence[int] = ()) -> Logits | DeviceLogits:
        """Return the logits [vocabulary] after the constraint, the penalties and the bias.

        If greedy, `choose` takes the highest of them. With a constraint, they are valid until the next call of the
        sampler, which reuses their memory.
        """
        if self._constraint is None and not self.sampling.penalises:
            return logits
        return penalised(self._allowed(np.asarray(logits), seen), self.sampling, seen, self._prompt_tokens)

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

    def replacement(
        self,
        token: int,
        target: Distribution,
        draft: Distribution | None,
    ) -> int:
        """Draw a token in the place of a rejected draft token, from the positive part of `target` - `draft`.

        target, draft: [vocabulary]; without `draft`, the token was not drawn, and is left out of `target`.
        """
        if isinstance(target, DeviceDistribution) and not isinstance(draft, np.ndarray):
            found = target.instead_of(token, draft).draw(self._random_bits())
            return self.draw(target) if found < 0 else found  # both are nearly equal
        target = np.array(target)
        if draft is not None:
            return self.draw(np.maximum(target - np.asarray(draft), 0.0))
        target[token] = 0.0
        return self.draw(target)

    def draw(self, probabilities: Distribution) -> int:
        """Draw a token from probabilities [vocabulary], which need not add up to exactly 1."""
        if isinstance(probabilities, DeviceDistribution):
            return checked(probabilities.draw(self._random_bits()))
        tokens = np.flatnonzero(probabilities)
        cumulative = np.cumsum(probabilities[tokens])
        place = self._generator.random() * cumulative[-1]
        return int(tokens[min(int(np.searchsorted(cumulative, place, side="right")), len(tokens) - 1)])


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
    """Return logits [vocabulary] after the penalties for the tokens `seen` and the bias: see `edits_of`."""
    return edited(logits, edits_of(sampling, seen, prompt_tokens), sampling.repetition_penalty)


def edits_of(sampling: Sampling, seen: Sequence[int], prompt_tokens: int = 0) -> Edits:
    """Return what the penalties for the tokens `seen` and the bias do to the logits of single tokens.

    The repetition penalty applies once to each token of `seen`. Presence and frequency penalty apply to those after the
    first `prompt_tokens`: a token generated n > 0 times loses presence + n · frequency (OpenAI's definition).
    """
    kinds: list[tuple[str, Tokens, Any]] = []  # field, tokens in ascending order, values
    if sampling.repetition_penalty != 1 and len(seen) > 0:
        kinds.append(("repeats", _counted(seen)[0], 1))
    if len(seen) > prompt_tokens and (sampling.presence_penalty != 0 or sampling.frequency_penalty != 0):
        lowered, counts = _counted(seen[prompt_tokens:])
        kinds.append(("lowered", lowered, sampling.presence_penalty + counts * sampling.frequency_penalty))
    if sampling.logit_bias:
        kinds.append(("raised", *sampling.bias))
    if not kinds:
        return NO_EDITS
    alone = len(kinds) == 1
    tokens = kinds[0][1] if alone else np.unique(np.concatenate([each for _, each, _ in kinds]))
    edits = np.zeros(len(tokens), EDIT)
    edits["token"] = tokens
    for name, each, values in kinds:
        edits[name][slice(None) if alone else np.searchsorted(tokens, each)] = values
    return edits


def _counted(tokens: Sequence[int]) -> tuple[Tokens, Tokens]:
    """Return the distinct tokens in ascending order, and how often each occurs.

    NumPy takes half the time when it counts: it sorts, where it would fill a table before it sorts.
    """
    return np.unique(np.asarray(tokens, np.intp), return_counts=True)
