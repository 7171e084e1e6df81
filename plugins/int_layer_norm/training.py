"""IntLayerNorm with a gradient, and what of it is trained."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from intaglio.plugins import integer_math
from intaglio.plugins.int_add.training import straight_through as add
from intaglio.plugins.int_layer_norm.spec import SUM_ATTRIBUTES
from intaglio.plugins.operator_inputs import Array
from intaglio.plugins.training_arithmetic import (
    WIDE_LIMIT,
    Attributes,
    Dual,
    Inputs,
    Outputs,
    Parameter,
    TrainingArithmetic,
)


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> Outputs:
    """[y, wide]."""
    x, weight, bias, multiplier, shift, *residual = inputs
    if residual[0] is not None:
        (x,) = add(arithmetic, [x, *residual], SUM_ATTRIBUTES)
    assert x is not None
    constants = integer_math.layer_norm_constants(x.shape[-1], **attributes)
    wide_scale = attributes["wide_scale"] or attributes["out_scale"] / 256
    weights = _in_units(arithmetic.dual(weight), attributes["weight_scale"] / wide_scale)
    biases = _in_units(arithmetic.dual(bias), attributes["bias_scale"] / wide_scale)
    # In a constant row the gradient would be infinite: there is at least the variance that rounding to integers has.
    epsilon = max(attributes["epsilon"], attributes["scale"] ** 2 / 12)
    wide = arithmetic.layer_norm(arithmetic.dual(x), weights, biases, constants, attributes["scale"], epsilon)
    first = constants.out_multiplier if multiplier is None else multiplier
    second = constants.out_shift if shift is None else shift
    return [arithmetic.result(arithmetic.requantize(wide, first, second, 8)), arithmetic.result(wide)]


def parameters(constants: Mapping[str, Array], attributes: Attributes) -> list[Parameter]:
    """Weight and bias, both in units of 1/127 of the largest weight: normalised activations are about 1."""
    if "weight" not in constants or "bias" not in constants:
        return []
    largest = int(np.abs(constants["weight"].astype(np.int64)).max(initial=1))
    limit = 2.0 ** largest.bit_length() - 1  # no more bits than before: kernels may be faster with few
    unit = largest / 127
    ratio = attributes["weight_scale"] / attributes["bias_scale"]
    return [
        Parameter("weight", limit, unit, "layer_norm"),
        Parameter("bias", WIDE_LIMIT, unit * ratio, "layer_norm"),
    ]


def _in_units(value: Dual, factor: float) -> Dual:
    return Dual(value.real * factor, value.integers)
