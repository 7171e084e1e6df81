"""IntGelu with a gradient."""

from __future__ import annotations

from intaglio.plugins import integer_math
from intaglio.plugins.training_arithmetic import Attributes, Inputs, Outputs, TrainingArithmetic


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> Outputs:
    """[y]."""
    x, multiplier, shift = inputs
    constants = integer_math.gelu_constants(attributes["scale"], attributes["out_scale"])
    inner = arithmetic.requantize(arithmetic.dual(x), constants.multiplier, constants.shift, 16)
    first = constants.out_multiplier if multiplier is None else multiplier
    second = constants.out_shift if shift is None else shift
    curve, zero_point = arithmetic.gelu(inner, constants), attributes["out_zero_point"]
    return [arithmetic.result(arithmetic.requantize(curve, first, second, 8, zero_point))]
