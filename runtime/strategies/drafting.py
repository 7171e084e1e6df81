"""What strategies share that draft tokens and have the large model review them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from intaglio.errors import UsageError
from intaglio.runtime.generation.sampling import Probabilities
from intaglio.runtime.sessions.decoder import DecoderSession, Logits
from intaglio.runtime.strategies.contract import Steps, Text, Written

MAX_COUNT = 1024  # tokens; what is drafted at a time, or looked for, is far below


def check_count(option: str, count: int, least: int = 1) -> None:
    """Refuse a number of tokens that is not in `least` to `MAX_COUNT`."""
    if not least <= count <= MAX_COUNT:
        raise UsageError(f"{option} {count}: expected {least} to {MAX_COUNT}.")


def check_probability(option: str, value: float) -> None:
    """Refuse what is no probability, or 0."""
    if not 0 < value <= 1:
        raise UsageError(f"{option} {value}: expected a probability, more than 0 and at most 1.")


def check_fits(option: str, count: int, large: DecoderSession, small: DecoderSession | None) -> None:
    """Refuse to draft more tokens at a time than the models take."""
    limit = min(session.limit for session in (large, small) if session)
    if count >= limit:
        raise UsageError(f"{option} {count}: expected less than the {limit} tokens that the models take.")


def verify(
    text: Text, draft: Sequence[int], proposals: Sequence[Probabilities | None], logits: Logits
) -> tuple[int, int]:
    """How many of the drafted tokens to keep, and the token after them, so that the text is distributed as the model's.

    draft      tokens, each drawn from its entry of `proposals`, [vocab]; None where it was given without a draw
    logits     [len(draft) + 1, vocab], the large model's before each of them and after the last

    Token x is kept with probability min(1, p(x) / q(x)); in the place of the first that is not, one is drawn from the
    positive part of p - q (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2). Where tokens are chosen
    greedily, p and q have one token each, and what is left is the model's own choice.
    """
    sampler, seen = text.sampler, list(text.tokens)
    for kept, (token, proposal) in enumerate(zip(draft, proposals, strict=True)):
        target = sampler.distribution(logits[kept], seen)
        if sampler.uniform() * (1.0 if proposal is None else proposal[token]) >= target[token]:
            if proposal is None:
                target[token] = 0.0
            return kept, sampler.draw(target if proposal is None else np.maximum(target - proposal, 0.0))
        seen.append(token)
    return len(draft), sampler.draw(sampler.distribution(logits[-1], seen))


def settle(text: Text, draft: Sequence[int], kept: int, token: int) -> Steps:
    """Give the first `kept` drafted tokens and the large model's `token` after them; the caches forget the others."""
    for place, drafted in enumerate(draft):
        yield Written(drafted, "small", rolled_back=place >= kept)
    yield Written(token, "large")
    for model in filter(None, (text.draft, text.large)):
        model.truncate(len(text.tokens) - 1)
