"""Drafting where it pays: as much as the measured times of the models' steps promise, and none where it cannot win."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import Steps, Strategy, Text
from intaglio.runtime.strategies.cost_model import StepTimes
from intaglio.runtime.strategies.draft_tree import DRAFT_TREES, DraftTree
from intaglio.runtime.strategies.ngram import NGram, copy_ahead
from intaglio.runtime.strategies.speculative import speculate
from intaglio.runtime.strategies.windows import CostWindow


@dataclass
class Auto(Strategy):
    """Speculative sampling with a draft model; without one the model's own drafts, where it makes some, or n-gram
    drafting; as many tokens at a time as pay by the cost model.

    Greedy texts are the large model's; sampled ones are distributed as its texts, but not the same for the same seed,
    as the windows depend on what was measured. That is done once for a pair of models, while they write nothing: a
    request with this strategy that comes first to busy models waits until they are idle.
    """

    needs_draft: ClassVar[bool | None] = None
    measures: ClassVar[bool] = True
    times: StepTimes = field(init=False)
    most: int = field(init=False)  # tokens that are drafted at a time

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`."""
        self.times = StepTimes.measure(large, small)
        self.most = DraftTree.tree if large.decoder.draft_kind and not small else self.times.longest

    def forecast(self) -> str:
        """What drafting can win at best, in a sentence; of a model that drafts itself, over passes that do so, too."""
        always = self.times.kept_alike(1.0)[: self.most]
        window = self.times.best_window(always)
        if not window:
            slow = "the draft model takes" if self.times.small else "to review several tokens takes"
            return f"Drafting cannot win: {slow} too long for that. The large model writes alone."
        best = self.times.speedup(always[:window])
        return f"Drafting can make it {best:.1f} times as fast, if all of {window} drafted tokens are always kept."

    def write(self, text: Text) -> Steps:
        """See `Strategy`."""
        if text.draft:
            return speculate(text, CostWindow(self.times))
        if kind := text.large.session.decoder.draft_kind:
            return DRAFT_TREES[kind]().write_trees(text, self.times.best_window)
        return copy_ahead(text, NGram.ngram, self.most, self.times.best_window)
