"""IntSoftmax with a gradient."""

from __future__ import annotations

from intaglio.plugins.training_arithmetic import Attributes, Inputs, Outputs, TrainingArithmetic


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> Outputs:
    """[y]."""
    x, mask = inputs
    y = arithmetic.softmax(arithmetic.dual(x), mask, attributes["scale"], attributes["out_scale"])
    return [arithmetic.result(y)]
