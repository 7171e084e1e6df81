"""One forward pass for each token: greedy decoding and sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from intaglio.runtime.strategies.contract import Decoding


class Plain:
    """The model alone: each token is chosen from the logits after all tokens before it."""

    needs_draft: ClassVar[bool] = False

    def tokens(self, decoding: Decoding, prompt: Sequence[int]) -> Iterator[int]:
        """See `Strategy`."""
        text = list(prompt)
        logits = decoding.model.prefill([prompt])[0]
        while True:
            decoding.counts.calls.large += 1
            token = decoding.sampler.choose(logits, text)
            yield token
            text.append(token)
            logits = decoding.model.step([[token]])[0, 0]
