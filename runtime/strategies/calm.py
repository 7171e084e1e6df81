"""Confident Adaptive Language Modeling: a token exits the model as soon as its hidden state hardly changes.

Schuster et al. 2022, with the measure of confidence that the thesis compares BiLD with: hidden-state saturation
(section 3.2 of the paper; thesis, appendix C.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from intaglio.errors import UsageError
from intaglio.networks.early_exit import NEVER
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import Emitted, GeneratedSequence, Steps, Strategy
from intaglio.runtime.strategies.options import option

ALWAYS_EXIT = -2.0  # a threshold that every cosine exceeds: for idle rows


@dataclass(frozen=True)
class Calm(Strategy):
    """The model alone; most tokens run only through its first blocks.

    The prompt runs through all blocks, so the first token is the whole model's (the paper's encoder never exits early
    either). Each later token exits where the cosine of its states before and after a block exceeds the threshold. The
    threshold falls in the course of the text, as early errors do more harm.
    """

    needs_draft: ClassVar[bool] = False
    whole_passes: ClassVar[bool] = False
    saturation: float = option(0.9, "exit when the cosine of a state before and after a block exceeds this")  # lambda
    decay: float = option(4.0, "how fast that threshold falls to 0.9 of its value within a text")  # tau

    def __post_init__(self) -> None:
        if not 0 <= self.saturation <= 1:
            raise UsageError(f"saturation {self.saturation}: expected a cosine, 0 to 1.")
        if not 0 <= self.decay < math.inf:
            raise UsageError(f"decay {self.decay}: expected 0 or more, and less than inf.")

    def prepare(self, target: DecoderSession, draft: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` for a model without an exit after every block."""
        if not target.decoder.saturation_exits:
            raise UsageError(
                "strategy 'calm': the model has no exit after every block. Train it (intaglio train early-exit "
                "--every-layer), export the result, and generate with that bundle."
            )

    def threshold(self, generated: int, most: int) -> float:
        """Return the threshold of the cosine after `generated` of at most `most` tokens (paper, section 5.2)."""
        return min(max(0.9 * self.saturation + 0.1 * math.exp(-self.decay * generated / most), 0.0), 1.0)

    def write(self, sequence: GeneratedSequence) -> Steps:
        """See `Strategy`."""
        model, most = sequence.target, sequence.remaining
        thresholds = model.session.exit_thresholds
        for generated in count():
            thresholds[model.row] = self.threshold(generated, most) if generated else NEVER
            logits = yield model.forward(sequence.tokens, chooses=True)
            thresholds[model.row] = ALWAYS_EXIT  # the text may end with the token
            sequence.counts.blocks += int(model.session.blocks_run[model.row][0])
            yield Emitted(sequence.sampler.choose(logits[-1], sequence.tokens), "large")
