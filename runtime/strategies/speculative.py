"""Speculative sampling: a draft model drafts, and the target model's distribution is preserved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.runtime.sampling.sampler import Distribution
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import GeneratedSequence, Steps, Strategy
from intaglio.runtime.strategies.options import option
from intaglio.runtime.strategies.verification import check_count, check_fits, commit, verify
from intaglio.runtime.strategies.windows import AdaptiveWindow, DraftWindow, FixedWindow


@dataclass(frozen=True)
class Speculative(Strategy):
    """Leviathan et al. 2023, algorithm 1, and Chen et al. 2023, algorithm 2: see `verify`."""

    needs_draft: ClassVar[bool] = True
    window: int | None = option(None, "number of draft tokens at a time, adaptive by default")  # see `AdaptiveWindow`

    def __post_init__(self) -> None:
        if self.window is not None:
            check_count("window", self.window)

    def prepare(self, target: DecoderSession, draft: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` if the models do not take drafts of this length."""
        check_fits("window", self.window or 0, target, draft)

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        return speculate(sequence, FixedWindow(self.window) if self.window else AdaptiveWindow())


def speculate(sequence: GeneratedSequence, window: DraftWindow) -> Steps:
    """Generate with the number of draft tokens that `window` returns."""
    while True:
        draft: list[int] = []
        draft_probs: list[Distribution | None] = []
        size = min(window.size(), sequence.remaining - 1)
        while len(draft) < size and not sequence.ends_with(draft):
            logits = yield sequence.draft_model.forward(sequence.tokens + draft)
            token, probabilities = sequence.sampler.propose(logits[-1], sequence.tokens + draft)
            draft.append(token)
            draft_probs.append(probabilities)
        logits = yield sequence.target.forward(sequence.tokens + draft, len(draft) + 1)
        accepted, token = verify(sequence, draft, draft_probs, logits)
        window.observe(len(draft), accepted)
        yield from commit(sequence, draft, accepted, token)
