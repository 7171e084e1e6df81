"""One forward pass for each token: greedy decoding and sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from intaglio.runtime.strategies.contract import Steps, Strategy, Text, Written


@dataclass(frozen=True)
class Plain(Strategy):
    """The model alone: each token is chosen from the logits after all tokens before it."""

    needs_draft: ClassVar[bool] = False

    def write(self, text: Text) -> Steps:
        """See `Strategy`."""
        while True:
            logits = yield text.large.follow(text.tokens)
            yield Written(text.sampler.choose(logits[-1], text.tokens), "large")
