"""IntAdd with a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins.training_arithmetic import Attributes, Inputs, TrainingArithmetic

if TYPE_CHECKING:
    from torch import Tensor


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> list[Tensor]:
    """[sum]."""
    x, y, x_multiplier, y_multiplier, shift = inputs
    assert x_multiplier is not None and y_multiplier is not None and shift is not None
    terms = [(arithmetic.dual(x), x_multiplier), (arithmetic.dual(y), y_multiplier)]
    return [arithmetic.result(arithmetic.weighted_sum(terms, shift, attributes["bits"]))]
