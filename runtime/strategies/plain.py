"""One forward pass per token: greedy decoding and sampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from intaglio.runtime.strategies.contract import Emitted, GeneratedSequence, Steps, Strategy

# Tokens that the model reads together instead of one after the other. In a batch, all rows of a pass are as wide.
MAX_FORCED = 8


@dataclass(frozen=True)
class Plain(Strategy):
    """The model alone: each token is chosen from the logits after all preceding tokens.

    Tokens without an alternative under the constraint of the request need no logits, and no pass of their own.
    """

    needs_draft: ClassVar[bool] = False

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        while True:
            logits = yield sequence.target.forward(sequence.tokens, chooses=True)
            yield Emitted(sequence.sampler.choose(logits[-1], sequence.tokens), "large")
            yield from _forced(sequence)


def _forced(sequence: GeneratedSequence) -> Iterator[Emitted]:
    """Yield the next tokens as long as the constraint allows only one."""
    if sequence.needs_logits:
        return
    for _ in range(MAX_FORCED):
        if (token := sequence.sampler.forced(sequence.tokens)) is None:
            return
        yield Emitted(token, "large")
