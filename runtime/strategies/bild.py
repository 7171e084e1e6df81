"""Big Little Decoder: a small model writes, a large one reviews (Kim et al., thesis chapter 4, algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.errors import UsageError
from intaglio.runtime.generation.sampling import largest_probability, surprise
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import Steps, Strategy, Text
from intaglio.runtime.strategies.drafting import check_count, check_fits, settle
from intaglio.runtime.strategies.options import option


@dataclass(frozen=True)
class BigLittleDecoder(Strategy):
    """The small model writes until it is unsure; the large one then reviews that, and writes the next token.

    A text ends reviewed: a token of the small model that would end it, or would be the last, is reviewed first. The
    ablations of section 4.3 are thresholds: a `rollback` of infinity takes nothing back; with a `fallback` of 0 the
    large model's turn is after `max_draft` tokens and no sooner.
    """

    needs_draft: ClassVar[bool] = True
    # The small model is unsure where its largest probability is below this (equation 4.2).
    fallback: float = option(0.5, "fall back to the large model below this confidence")
    # Its token is taken back where -ln p_large(token) exceeds this (equation 4.3).
    rollback: float = option(2.0, "reject a draft token beyond this distance in nats, or inf")
    max_draft: int = option(10, "maximum draft tokens between two reviews by the large model")

    def __post_init__(self) -> None:
        if not 0 <= self.fallback <= 1:
            raise UsageError(f"fallback {self.fallback}: expected a probability, 0 to 1.")
        if not self.rollback >= 0:
            raise UsageError(f"rollback {self.rollback}: expected 0 or more nats, or inf.")
        check_count("max draft", self.max_draft)

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` where the models take no such drafts."""
        check_fits("max draft", self.max_draft, large, small)

    def write(self, text: Text) -> Steps:
        """See `Strategy`."""
        choose, penalised = text.sampler.choose, text.sampler.penalised
        while True:
            draft: list[int] = []
            while len(draft) < min(self.max_draft, text.room - 1):
                logits = yield text.small.follow(text.tokens + draft)
                if largest_probability(penalised(logits[-1], text.tokens + draft)) < self.fallback:
                    break
                draft.append(choose(logits[-1], text.tokens + draft))
                if draft[-1] in text.ends:
                    break
            logits = yield text.large.follow(text.tokens + draft, len(draft) + 1)
            reviewed = (penalised(logits[place], text.tokens + draft[:place]) for place in range(len(draft)))
            far = (place for place, scores in enumerate(reviewed) if surprise(scores, draft[place]) > self.rollback)
            kept = next(far, len(draft))
            yield from settle(text, draft, kept, choose(logits[kept], text.tokens + draft[:kept]))
