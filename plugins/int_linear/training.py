"""IntLinear with a gradient, and what of it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from intaglio.plugins.int_linear.spec import gelu_constants
from intaglio.plugins.operator_inputs import Array
from intaglio.plugins.training_arithmetic import (
    WEIGHT_LIMIT,
    WIDE_LIMIT,
    Attributes,
    Dual,
    Inputs,
    Outputs,
    Parameter,
    TrainingArithmetic,
)

if TYPE_CHECKING:
    from torch import Tensor


def straight_through(arithmetic: TrainingArithmetic, inputs: Inputs, attributes: Attributes) -> Outputs:
    """[y]."""
    x, weight = inputs[:2]
    assert x is not None and weight is not None
    product, bias = arithmetic.product(x, weight), arithmetic.dual(inputs[2])
    accumulator = Dual(product.real + bias.real, product.integers + bias.integers)
    y = finish(arithmetic, accumulator, inputs[3:7], attributes)
    gate, gate_multiplier, gate_shift, residual, multiple = inputs[7:]
    if gate_multiplier is not None and gate_shift is not None:
        limited = arithmetic.requantize(arithmetic.dual(gate), 1, 0, 16)
        gated = arithmetic.requantize(times(arithmetic.dual(y), limited), gate_multiplier, gate_shift, 8)
        return [arithmetic.result(gated)]
    if residual is not None:
        stream, units = arithmetic.dual(residual), times(arithmetic.dual(y), arithmetic.dual(multiple))
        wrapped = (stream.integers + units.integers + (1 << 31)) % (1 << 32) - (1 << 31)  # as the operator does
        total = Dual(stream.real.double() + units.real, wrapped)
        return [arithmetic.result(total)]
    return [y]


def times(a: Dual, b: Dual) -> Dual:
    """a·b, element by element."""
    return Dual(a.real * b.real, a.integers * b.integers)


def finish(arithmetic: TrainingArithmetic, value: Dual, factors: Inputs, attributes: Attributes) -> Tensor:
    """The epilogue of a matrix product; `factors` are multiplier, shift, out_multiplier, out_shift."""
    bits, activation = attributes["bits"], attributes.get("activation")
    if bits == 32:
        return arithmetic.result(Dual(value.real.double(), value.integers))
    multiplier, shift, out_multiplier, out_shift = factors
    assert multiplier is not None and shift is not None
    value = arithmetic.requantize(value, multiplier, shift, 16 if activation else bits)
    if activation:
        constants = gelu_constants(attributes)
        first = constants.out_multiplier if out_multiplier is None else out_multiplier
        second = constants.out_shift if out_shift is None else out_shift
        curve, zero_point = arithmetic.gelu(value, constants), attributes["out_zero_point"]
        value = arithmetic.requantize(curve, first, second, bits, zero_point)
    return arithmetic.result(value)


def parameters(constants: Mapping[str, Array], attributes: Attributes) -> list[Parameter]:
    """Weight and bias, where constant; 127 of the bias are what one of the weight adds for the largest x."""
    both = (Parameter("weight", WEIGHT_LIMIT, 1.0, "weight"), Parameter("bias", WIDE_LIMIT, 127.0, "bias"))
    return [each for each in both if each.input in constants]
