"""One forward pass per token: greedy decoding and sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.runtime.strategies.contract import GeneratedSequence, Steps, Strategy, Written


@dataclass(frozen=True)
class Plain(Strategy):
    """The model alone: each token is chosen from the logits after all preceding tokens."""

    needs_draft: ClassVar[bool] = False

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        while True:
            logits = yield sequence.large.follow(sequence.tokens)
            yield Written(sequence.sampler.choose(logits[-1], sequence.tokens), "large")
