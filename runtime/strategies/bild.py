"""Big Little Decoder: a draft model drafts, the target model verifies (Kim et al., thesis chapter 4, algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.errors import UsageError
from intaglio.runtime.sampling.likelihood import largest_probability, surprise
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import GeneratedSequence, Steps, Strategy
from intaglio.runtime.strategies.options import option
from intaglio.runtime.strategies.verification import check_count, check_fits, commit


@dataclass(frozen=True)
class BigLittleDecoder(Strategy):
    """The draft model drafts until it is not confident; the target model verifies the draft and adds the next token.

    A draft token that ends the text, or is the last one, is verified too. The ablations of section 4.3 are thresholds:
    with `rollback` infinity no draft is rejected; with `fallback` 0 the target model runs only after `max_draft`
    tokens.
    """

    needs_draft: ClassVar[bool] = True
    # The draft model is not confident if its largest probability is below this (equation 4.2).
    fallback: float = option(0.5, "fall back to the target model below this confidence")
    # Its token is rejected if -ln p_large(token) exceeds this (equation 4.3).
    rollback: float = option(2.0, "reject a draft token beyond this distance in nats, or inf")
    max_draft: int = option(10, "maximum draft tokens that the target model verifies in a pass")

    def __post_init__(self) -> None:
        if not 0 <= self.fallback <= 1:
            raise UsageError(f"fallback {self.fallback}: expected a probability, 0 to 1.")
        if not self.rollback >= 0:
            raise UsageError(f"rollback {self.rollback}: expected 0 or more nats, or inf.")
        check_count("max draft", self.max_draft)

    def prepare(self, target: DecoderSession, draft: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` if the models do not take drafts of this length."""
        check_fits("max draft", self.max_draft, target, draft)

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        choose, penalised = sequence.sampler.choose, sequence.sampler.penalised
        while True:
            draft: list[int] = []
            while len(draft) < min(self.max_draft, sequence.remaining - 1):
                logits = yield sequence.draft_model.forward(sequence.tokens + draft)
                if largest_probability(penalised(logits[-1], sequence.tokens + draft)) < self.fallback:
                    break
                draft.append(choose(logits[-1], sequence.tokens + draft))
                if sequence.ends_with(draft):
                    break
            logits = yield sequence.target.forward(sequence.tokens + draft, len(draft) + 1)
            verified = (penalised(logits[place], sequence.tokens + draft[:place]) for place in range(len(draft)))
            far = (place for place, scores in enumerate(verified) if surprise(scores, draft[place]) > self.rollback)
            accepted = next(far, len(draft))
            yield from commit(sequence, draft, accepted, choose(logits[accepted], sequence.tokens + draft[:accepted]))
