"""Shared by the drafting strategies: checks of options, verifying draft tokens, and committing the accepted ones."""

from __future__ import annotations

from collections.abc import Sequence

from intaglio.errors import UsageError
from intaglio.runtime.sampling.sampler import Distribution
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.device_logits import StepLogits
from intaglio.runtime.strategies.contract import Emitted, GeneratedSequence, Steps

MAX_COUNT = 1024  # tokens; useful windows and n-grams are far shorter


def check_count(option: str, count: int, least: int = 1) -> None:
    """Raise `UsageError` for a number of tokens outside `least` to `MAX_COUNT`."""
    if not least <= count <= MAX_COUNT:
        raise UsageError(f"{option} {count}: expected {least} to {MAX_COUNT}.")


def check_probability(option: str, value: float) -> None:
    """Raise `UsageError` for a value that is not a probability above 0."""
    if not 0 < value <= 1:
        raise UsageError(f"{option} {value}: expected a probability, more than 0 and at most 1.")


def check_fits(option: str, count: int, target: DecoderSession, draft: DecoderSession | None) -> None:
    """Raise `UsageError` for more draft tokens at a time than the models take."""
    limit = min(session.limit for session in (target, draft) if session)
    if count >= limit:
        raise UsageError(f"{option} {count}: expected less than the {limit} tokens that the models take.")


def verify(
    sequence: GeneratedSequence,
    draft: Sequence[int],
    draft_probs: Sequence[Distribution | None],
    logits: StepLogits,
) -> tuple[int, int]:
    """Return how many draft tokens to accept, and the token after them; the target model's distribution is preserved.

    draft      tokens, each drawn from its entry of `draft_probs`, [vocab]; None if it was not drawn
    logits     [len(draft) + 1, vocab], the target model's before each draft token and after the last

    Token x is accepted with probability min(1, p(x) / q(x)); the first rejected token is replaced by one drawn from the
    positive part of p - q (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2). With greedy decoding a
    token is accepted if it is the model's own choice.
    """
    sampler, seen = sequence.sampler, list(sequence.tokens)
    for accepted, (token, draft_prob) in enumerate(zip(draft, draft_probs, strict=True)):
        if sampler.sampling.greedy:
            chosen = sampler.choose(logits[accepted], seen)
            if chosen != token:
                return accepted, chosen
            seen.append(token)
            continue
        target_prob = sampler.distribution(logits[accepted], seen)
        if sampler.uniform() * (1.0 if draft_prob is None else draft_prob[token]) >= target_prob[token]:
            return accepted, sampler.replacement(token, target_prob, draft_prob)
        seen.append(token)
    return len(draft), sampler.choose(logits[-1], seen)


def commit(sequence: GeneratedSequence, draft: Sequence[int], accepted: int, token: int) -> Steps:
    """Emit the first `accepted` draft tokens and the target model's `token`; remove the others from the caches."""
    for place, drafted in enumerate(draft):
        yield Emitted(drafted, "small", rolled_back=place >= accepted)
    yield Emitted(token, "large")
    for model in filter(None, (sequence.draft, sequence.target)):
        model.truncate(len(sequence.tokens) - 1)
