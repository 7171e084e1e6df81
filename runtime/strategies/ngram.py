"""N-gram drafting: what followed the last few tokens before, in the prompt or the text, may follow again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from intaglio.runtime.decoder import DecoderSession
from intaglio.runtime.strategies.contract import Steps, Strategy, Text
from intaglio.runtime.strategies.drafting import check_count, check_fits, settle, verify
from intaglio.runtime.strategies.windows import FixedWindow, Window


@dataclass(frozen=True)
class NGram(Strategy):
    """Drafts are copied from the text itself, or from what an encoder read; no second model is needed.

    Saxena 2023, prompt lookup.
    The text is distributed as the model's alone, see `verify`.
    """

    needs_draft: ClassVar[bool] = False
    ngram: int = 3  # last tokens that are looked for at most; if they never occurred, fewer are
    window: int = 10  # tokens drafted at a time

    def __post_init__(self) -> None:
        check_count("ngram", self.ngram)
        check_count("window", self.window)

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` where the models take no such drafts."""
        check_fits("window", self.window, large, small)

    def write(self, text: Text) -> Steps:
        """See `Strategy`."""
        return copy_ahead(text, self.ngram, FixedWindow(self.window))


def copy_ahead(text: Text, ngram: int, window: Window) -> Steps:
    """Write the text, as many tokens copied at a time as `window` says, where `ngram` tokens or fewer occurred."""
    places = _Places(ngram)
    while True:
        before = [*text.source, *text.tokens]
        start = places.after_the_last(before)
        draft = before[start : start + min(window.size(), text.room - 1)] if start else []
        logits = yield text.large.follow(text.tokens + draft, len(draft) + 1)
        kept, token = verify(text, draft, [None] * len(draft), logits)
        window.observe(len(draft), kept)
        yield from settle(text, draft, kept, token)


@dataclass
class _Places:
    """Where each n-gram of a growing text, of 1 to `longest` tokens, occurred last with something after it."""

    longest: int
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)  # n-gram -> place of the token after it
    known: int = 0  # tokens of the text whose n-grams are in `ends`

    def after_the_last(self, tokens: list[int]) -> int | None:
        """The place after the last earlier occurrence of the text's end, as long a piece of it as occurred."""
        for end in range(self.known + 1, len(tokens)):
            self.ends.update({tuple(tokens[end - size : end]): end for size in range(1, min(self.longest, end) + 1)})
        self.known = len(tokens) - 1
        sizes = range(min(self.longest, len(tokens)), 0, -1)
        return next((self.ends[gram] for size in sizes if (gram := tuple(tokens[-size:])) in self.ends), None)
