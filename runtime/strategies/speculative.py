"""Speculative sampling: a small model drafts, and the text is distributed as the large one's alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.runtime.generation.sampling import Probabilities
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import Steps, Strategy, Text
from intaglio.runtime.strategies.drafting import check_count, check_fits, settle, verify
from intaglio.runtime.strategies.options import option
from intaglio.runtime.strategies.windows import AdaptiveWindow, FixedWindow, Window


@dataclass(frozen=True)
class Speculative(Strategy):
    """Leviathan et al. 2023, algorithm 1, and Chen et al. 2023, algorithm 2: see `verify`."""

    needs_draft: ClassVar[bool] = True
    window: int | None = option(None, "draft tokens at a time, by default adaptive")  # see `AdaptiveWindow`

    def __post_init__(self) -> None:
        if self.window is not None:
            check_count("window", self.window)

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` where the models take no such drafts."""
        check_fits("window", self.window or 0, large, small)

    def write(self, text: Text) -> Steps:
        """See `Strategy`."""
        return speculate(text, FixedWindow(self.window) if self.window else AdaptiveWindow())


def speculate(text: Text, window: Window) -> Steps:
    """Write the text, as many tokens drafted at a time as `window` says."""
    while True:
        draft: list[int] = []
        proposals: list[Probabilities] = []
        size = min(window.size(), text.room - 1)
        while len(draft) < size and not text.ends.intersection(draft[-1:]):
            logits = yield text.small.follow(text.tokens + draft)
            proposals.append(text.sampler.distribution(logits[-1], text.tokens + draft))
            draft.append(text.sampler.draw(proposals[-1]))
        logits = yield text.large.follow(text.tokens + draft, len(draft) + 1)
        kept, token = verify(text, draft, proposals, logits)
        window.observe(len(draft), kept)
        yield from settle(text, draft, kept, token)
