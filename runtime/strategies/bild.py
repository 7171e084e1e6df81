"""Big Little Decoder: a small model drafts, a large one reviews (Kim et al., thesis chapter 4, algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.errors import UsageError
from intaglio.runtime.generation.sampling import largest_probability, surprise
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import GeneratedSequence, Steps, Strategy
from intaglio.runtime.strategies.drafting import check_count, check_fits, settle
from intaglio.runtime.strategies.options import option


@dataclass(frozen=True)
class BigLittleDecoder(Strategy):
    """The small model drafts until it is not confident; the large one then reviews the draft and adds the next token.

    The end of a text is reviewed too: a draft token that ends it, or is the last one, goes through a review first. The
    ablations of section 4.3 are thresholds: with `rollback` infinity no draft is rejected; with `fallback` 0 the large
    model runs only after `max_draft` tokens.
    """

    needs_draft: ClassVar[bool] = True
    # The small model is not confident if its largest probability is below this (equation 4.2).
    fallback: float = option(0.5, "fall back to the large model below this confidence")
    # Its token is rejected if -ln p_large(token) exceeds this (equation 4.3).
    rollback: float = option(2.0, "reject a draft token beyond this distance in nats, or inf")
    max_draft: int = option(10, "maximum draft tokens between two reviews by the large model")

    def __post_init__(self) -> None:
        if not 0 <= self.fallback <= 1:
            raise UsageError(f"fallback {self.fallback}: expected a probability, 0 to 1.")
        if not self.rollback >= 0:
            raise UsageError(f"rollback {self.rollback}: expected 0 or more nats, or inf.")
        check_count("max draft", self.max_draft)

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` if the models do not take drafts of this length."""
        check_fits("max draft", self.max_draft, large, small)

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        choose, penalised = sequence.sampler.choose, sequence.sampler.penalised
        while True:
            draft: list[int] = []
            while len(draft) < min(self.max_draft, sequence.room - 1):
                logits = yield sequence.small.follow(sequence.tokens + draft)
                if largest_probability(penalised(logits[-1], sequence.tokens + draft)) < self.fallback:
                    break
                draft.append(choose(logits[-1], sequence.tokens + draft))
                if sequence.ends_with(draft):
                    break
            logits = yield sequence.large.follow(sequence.tokens + draft, len(draft) + 1)
            reviewed = (penalised(logits[place], sequence.tokens + draft[:place]) for place in range(len(draft)))
            far = (place for place, scores in enumerate(reviewed) if surprise(scores, draft[place]) > self.rollback)
            kept = next(far, len(draft))
            yield from settle(sequence, draft, kept, choose(logits[kept], sequence.tokens + draft[:kept]))
