"""Requantize with a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins.training_arithmetic import Attributes, Inputs, TrainingArithmetic

if TYPE_CHECKING:
    from torch import Tensor


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """[y]."""
    x, multiplier, shift = inputs
    assert multiplier is not None and shift is not None
    y = arithmetic.requantize(arithmetic.dual(x), multiplier, shift, attributes["bits"])
    return [arithmetic.result(y)]
