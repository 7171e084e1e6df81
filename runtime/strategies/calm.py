"""Confident Adaptive Language Modeling: a token leaves the model as soon as its state hardly changes any more.

Schuster et al. 2022, with the measure of confidence that the thesis compares BiLD with: hidden-state saturation
(section 3.2 of the paper; thesis, appendix C.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

from intaglio.early_exit import NEVER
from intaglio.errors import UsageError
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.strategies.contract import Steps, Strategy, Text, Written
from intaglio.runtime.strategies.options import option

AT_ONCE = -2.0  # a threshold that every cosine exceeds: of a row that no pass is run for


@dataclass(frozen=True)
class Calm(Strategy):
    """The model alone, and of most tokens only its first blocks.

    The prompt is read by all blocks, so that the first token is the whole model's, as the paper's encoder is never left
    early. Each token that is read after that leaves where the cosine of its states before and after a block exceeds
    the threshold, which falls in the course of the text: what is wrong at its beginning does more harm.
    """

    needs_draft: ClassVar[bool] = False
    whole_passes: ClassVar[bool] = False
    saturation: float = option(0.9, "similarity of a state before and after a block at which its token exits")  # lambda
    decay: float = option(4.0, "how fast that threshold falls to 0.9 of itself in a text")  # tau

    def __post_init__(self) -> None:
        if not 0 <= self.saturation <= 1:
            raise UsageError(f"saturation {self.saturation}: expected a cosine, 0 to 1.")
        if not 0 <= self.decay < math.inf:
            raise UsageError(f"decay {self.decay}: expected 0 or more, and less than inf.")

    def prepare(self, large: DecoderSession, small: DecoderSession | None) -> None:
        """See `Strategy`. Raises `UsageError` for a model without such exits."""
        if not large.decoder.saturation_exits:
            raise UsageError(
                "strategy 'calm': the model has no exit after every block. Train it (intaglio train early-exit "
                "--every-layer), export what that makes, and generate with that bundle."
            )

    def threshold(self, written: int, most: int) -> float:
        """What the cosine has to exceed once `written` of at most `most` tokens are there (paper, section 5.2)."""
        return min(max(0.9 * self.saturation + 0.1 * math.exp(-self.decay * written / most), 0.0), 1.0)

    def write(self, text: Text) -> Steps:
        """See `Strategy`."""
        model, most = text.large, text.room
        thresholds = model.session.exit_thresholds
        for written in count():
            thresholds[model.row] = self.threshold(written, most) if written else NEVER
            logits = yield model.follow(text.tokens)
            thresholds[model.row] = AT_ONCE  # the text may end with the token
            text.counts.blocks += int(model.session.blocks_run[model.row][0])
            yield Written(text.sampler.choose(logits[-1], text.tokens), "large")
