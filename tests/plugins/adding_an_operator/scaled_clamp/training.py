"""ScaledClamp with a gradient, 0 where the output is cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins.training_arithmetic import Attributes, Inputs, TrainingArithmetic

if TYPE_CHECKING:
    from torch import Tensor


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """[y]: nothing is rounded, so torch's own gradient is right."""
    x, factor = inputs
    assert x is not None
    scaled = x if factor is None else x * factor
    return [scaled.clamp(attributes["low"], attributes["high"])]
