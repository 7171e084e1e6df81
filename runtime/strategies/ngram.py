"""N-gram drafting: draft tokens are copied from the text itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import GeneratedSequence, Steps, Strategy
from intaglio.runtime.strategies.ngram_drafts import NgramDrafter
from intaglio.runtime.strategies.options import option
from intaglio.runtime.strategies.verification import check_count, check_fits, check_probability, commit, verify


@dataclass(frozen=True)
class NGram(Strategy):
    """Copies drafts from the text itself, or from the encoder's input; no second model is needed.

    Only tokens likely to be accepted, judged by earlier drafts, are drafted, as verifying a wrong one costs time. The
    text has the same distribution as without drafts, see `verify`.
    """

    needs_draft: ClassVar[bool] = False
    ngram: int = option(6, "longest n-gram to look up in the text so far")
    window: int = option(10, "maximum draft tokens at a time")
    min_draft_prob: float = option(0.05, "minimum draft probability")  # that a token and all before it are accepted

    def __post_init__(self) -> None:
        check_count("ngram", self.ngram)
        check_count("window", self.window)
        check_probability("min draft prob", self.min_draft_prob)

    def prepare(self, target: DecoderSession, draft: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` if the models do not take drafts of this length."""
        check_fits("window", self.window, target, draft)

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        return copy_ahead(
            sequence, self.ngram, self.window, lambda chances: sum(each >= self.min_draft_prob for each in chances)
        )


def copy_ahead(sequence: GeneratedSequence, ngram: int, most: int, enough: Callable[[Sequence[float]], int]) -> Steps:
    """Generate with drafts of at most `most` tokens, copied from an earlier occurrence of the last `ngram` or fewer.

    `enough`: returns how many draft tokens to verify, given the chances that each and all before it are accepted.
    """
    drafter = NgramDrafter(ngram)
    while True:
        drafter.extend([*sequence.source, *sequence.tokens])
        draft, chances = drafter.chain(min(most, sequence.remaining - 1))
        draft = sequence.allowed_draft(draft[: enough(chances)])
        logits = yield sequence.target.forward(sequence.tokens + draft, len(draft) + 1)
        accepted, token = verify(sequence, draft, [None] * len(draft), logits)
        drafter.observe([*draft[:accepted], token])
        yield from commit(sequence, draft, accepted, token)
