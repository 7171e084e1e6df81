"""N-gram drafting: the text itself is what is copied from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import Steps, Strategy, Text
from intaglio.runtime.strategies.copies import Copies
from intaglio.runtime.strategies.drafting import check_count, check_fits, check_probability, settle, verify
from intaglio.runtime.strategies.options import option


@dataclass(frozen=True)
class NGram(Strategy):
    """Drafts are copied from the text itself, or from what an encoder read; no second model is needed.

    As many as are likely to be kept, by how well earlier ones did: a wrong one costs the time of its review. The text
    is distributed as the model's alone, see `verify`.
    """

    needs_draft: ClassVar[bool] = False
    ngram: int = option(6, "longest n-gram to look up in the text so far")
    window: int = option(10, "maximum draft tokens at a time")
    min_draft_prob: float = option(0.05, "minimum draft probability")  # that a token is kept, and those before it

    def __post_init__(self) -> None:
        check_count("ngram", self.ngram)
        check_count("window", self.window)
        check_probability("min draft prob", self.min_draft_prob)

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` where the models take no such drafts."""
        check_fits("window", self.window, large, small)

    def write(self, text: Text) -> Steps:
        """See `Strategy`."""
        return copy_ahead(
            text, self.ngram, self.window, lambda chances: sum(each >= self.min_draft_prob for each in chances)
        )


def copy_ahead(text: Text, ngram: int, most: int, enough: Callable[[Sequence[float]], int]) -> Steps:
    """Write the text with drafts of at most `most` tokens, copied from where up to `ngram` last ones occurred before.

    `enough`: how many of a draft to review, by the chances that each of its tokens is kept, and those before it.
    """
    copies = Copies(ngram)
    while True:
        copies.read([*text.source, *text.tokens])
        draft, chances = copies.chain(min(most, text.room - 1))
        draft = draft[: enough(chances)]
        logits = yield text.large.follow(text.tokens + draft, len(draft) + 1)
        kept, token = verify(text, draft, [None] * len(draft), logits)
        copies.observe([*draft[:kept], token])
        yield from settle(text, draft, kept, token)
