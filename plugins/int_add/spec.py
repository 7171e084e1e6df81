"""IntAdd: the sum of two tensors with scales of their own, rounded once (the residual sum of an encoder).

    y = clip(round((x·x_multiplier + y·y_multiplier) / 2^shift))

With multipliers below 2^30 each product stays within ±2^61, so the rounded sum is exact in 64 bits.
"""

from __future__ import annotations

from typing import Any

from intaglio.plugins import integer_math
from intaglio.plugins.contract import (
    Attributes,
    Body,
    Inputs,
    Operator,
    Results,
    Shapes,
    Values,
    broadcast,
    integers,
    with_bits,
)
from intaglio.plugins.int_add.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Shape, check_channels
from intaglio.plugins.requantize.spec import LIMITS


class IntAdd(Operator):
    """x·x_multiplier + y·y_multiplier, over 2^shift, rounded and limited to `bits`; x and y broadcast."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """The factors are for the channels of the sum."""
        super().check(inputs, attributes)
        x, y = (None if each is None else each.shape for each in inputs[:2])
        if x is not None and y is not None and (shape := broadcast(x, y)):
            check_channels(self.name, shape[-1], inputs[2:])

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[sum]: int8, or int32 holding 16-bit values."""
        x, y, x_multiplier, y_multiplier, shift = map(integers, inputs)
        bits = attributes["bits"]
        total = integer_math.scaled_sum(x, x_multiplier, y, y_multiplier, shift)
        return [with_bits(integer_math.clip(total, LIMITS[bits]), bits)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The common shape of x and y."""
        return [broadcast(inputs[0] or (), inputs[1] or ())]

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """Two products, their sum, one rounded shift."""
        x, y, x_multiplier, y_multiplier, shift = (value for value in inputs if value is not None)
        bits = attributes["bits"]
        return [graph.bits(graph.rescale([(x, x_multiplier), (y, y_multiplier)], shift, bits), bits)]


OPERATOR = IntAdd()
