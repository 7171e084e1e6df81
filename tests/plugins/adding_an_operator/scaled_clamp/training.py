"""ScaledClamp with a gradient, which is 0 for clamped outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins.training_arithmetic import Attributes, Inputs, TrainingArithmetic

if TYPE_CHECKING:
    from torch import Tensor


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """[y]: without rounding, so torch's own gradient is correct."""
    x, factor = inputs
    assert x is not None
    scaled = x if factor is None else x * factor
    return [scaled.clamp(attributes["low"], attributes["high"])]
