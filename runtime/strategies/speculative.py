"""Speculative sampling: a small model drafts, and the large model's distribution is preserved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.runtime.generation.sampling import Probabilities
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import GeneratedSequence, Steps, Strategy
from intaglio.runtime.strategies.drafting import check_count, check_fits, settle, verify
from intaglio.runtime.strategies.options import option
from intaglio.runtime.strategies.windows import AdaptiveWindow, FixedWindow, Window


@dataclass(frozen=True)
class Speculative(Strategy):
    """Leviathan et al. 2023, algorithm 1, and Chen et al. 2023, algorithm 2: see `verify`."""

    needs_draft: ClassVar[bool] = True
    window: int | None = option(None, "number of draft tokens at a time, adaptive by default")  # see `AdaptiveWindow`

    def __post_init__(self) -> None:
        if self.window is not None:
            check_count("window", self.window)

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` if the models do not take drafts of this length."""
        check_fits("window", self.window or 0, large, small)

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        return speculate(sequence, FixedWindow(self.window) if self.window else AdaptiveWindow())


def speculate(sequence: GeneratedSequence, window: Window) -> Steps:
    """Generate with the number of draft tokens that `window` returns."""
    while True:
        draft: list[int] = []
        proposals: list[Probabilities] = []
        size = min(window.size(), sequence.room - 1)
        while len(draft) < size and not sequence.ends_with(draft):
            logits = yield sequence.small.follow(sequence.tokens + draft)
            proposals.append(sequence.sampler.distribution(logits[-1], sequence.tokens + draft))
            draft.append(sequence.sampler.draw(proposals[-1]))
        logits = yield sequence.large.follow(sequence.tokens + draft, len(draft) + 1)
        kept, token = verify(sequence, draft, proposals, logits)
        window.observe(len(draft), kept)
        yield from settle(sequence, draft, kept, token)
