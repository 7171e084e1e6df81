"""IntAdd with a gradient."""

from __future__ import annotations

from intaglio.plugins.training_arithmetic import Attributes, Inputs, Outputs, TrainingArithmetic


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> Outputs:
    """[sum]."""
    x, y, x_multiplier, y_multiplier, shift = inputs
    assert x_multiplier is not None and y_multiplier is not None and shift is not None
    terms = [(arithmetic.dual(x), x_multiplier), (arithmetic.dual(y), y_multiplier)]
    return [arithmetic.result(arithmetic.weighted_sum(terms, shift, attributes["bits"]))]
