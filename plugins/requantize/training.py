"""Requantize with a gradient."""

from __future__ import annotations

from intaglio.plugins.training_arithmetic import Attributes, Inputs, Outputs, TrainingArithmetic


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> Outputs:
    """[y]."""
    x, multiplier, shift = inputs
    assert multiplier is not None and shift is not None
    y = arithmetic.requantize(arithmetic.dual(x), multiplier, shift, attributes["bits"])
    return [arithmetic.result(y)]
