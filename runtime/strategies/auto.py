"""Adaptive drafting: draft as many tokens as the cost model predicts to be fastest, none where drafting is slower."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import GeneratedSequence, Steps, Strategy
from intaglio.runtime.strategies.cost_model import StepTimes
from intaglio.runtime.strategies.draft_tree import DRAFT_TREES, DraftTree
from intaglio.runtime.strategies.ngram import NGram, copy_ahead
from intaglio.runtime.strategies.speculative import speculate
from intaglio.runtime.strategies.windows import CostWindow


@dataclass
class Auto(Strategy):
    """Speculative sampling with a draft model; without one, the model's own drafts if it has any, or n-gram drafting.

    The cost model chooses the number of draft tokens. Greedy texts are identical to the target model's; sampled texts
    have the same distribution, but vary for one seed, as the windows depend on measured times. The models are measured
    once, while idle: the first request with this strategy waits until they are.
    """

    needs_draft: ClassVar[bool | None] = None
    measures: ClassVar[bool] = True
    times: StepTimes = field(init=False)
    most: int = field(init=False)  # maximum draft tokens at a time

    def prepare(self, target: DecoderSession, draft: DecoderSession | None) -> None:
        """See `Strategy`."""
        self.times = StepTimes.measure(target, draft)
        self.most = DraftTree.tree if target.decoder.draft_kind and not draft else self.times.longest

    def forecast(self) -> str:
        """Return the best possible speedup as a sentence; a self-drafting model is compared with its own passes."""
        always = self.times.acceptance_powers(1.0)[: self.most]
        window = self.times.best_window(always)
        if not window:
            slow = "the draft model" if self.times.draft else "a pass over several tokens"
            return f"Drafting is off: {slow} takes too long to gain speed. The target model runs alone."
        best = self.times.speedup(always[:window])
        return f"Drafting can be up to {best:.1f} times as fast, if all {window} draft tokens are always accepted."

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        if sequence.draft:
            return speculate(sequence, CostWindow(self.times))
        if kind := sequence.target.session.decoder.draft_kind:
            return DRAFT_TREES[kind]().write_trees(sequence, self.times.best_window)
        return copy_ahead(sequence, NGram.ngram, self.most, self.times.best_window)
