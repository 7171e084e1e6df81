"""IntGelu: i-GELU (I-BERT, equations 2.8 and 2.9, algorithm 2) of int32 values, as int8.

The input is requantised to 16 bits at a scale that is fine enough for the output and wide enough for erf's curve, the
polynomial is computed there, and the result is requantised to 8 bits, with a factor per channel if given (which
spreads outliers into the rows of the next weight). GELU's results end at -0.17 below: with a zero point, the integer
that stands for 0, nearly all of the 8 bits lie above.
"""

from __future__ import annotations

from typing import Any

from intaglio.plugins import integer_math
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Values, integers, with_bits
from intaglio.plugins.int_gelu.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array


class IntGelu(Operator):
    """gelu(x·scale) / out_scale + out_zero_point; `multiplier` and `shift` take the place of out_scale at the end."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Both scales are in the range of the arithmetic, and the zero point in that of y."""
        super().check(inputs, attributes)
        integer_math.gelu_constants(attributes["scale"], attributes["out_scale"])
        integer_math.check_zero_point(self.name, attributes["out_zero_point"])

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: int8."""
        x, multiplier, shift = inputs
        constants = integer_math.gelu_constants(attributes["scale"], attributes["out_scale"])
        inner = integer_math.requantize(integers(x), constants.multiplier, constants.shift)
        curve = integer_math.gelu(integer_math.clip(inner, integer_math.INT16), constants)
        y = integer_math.requantize(
            curve,
            constants.out_multiplier if multiplier is None else multiplier,
            constants.out_shift if shift is None else shift,
        )
        return [with_bits(integer_math.clip(y + attributes["out_zero_point"], integer_math.INT8), 8)]

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """The same steps, the polynomial as a table."""
        x, multiplier, shift = inputs
        assert x is not None
        constants = integer_math.gelu_constants(attributes["scale"], attributes["out_scale"])
        curve = graph.gelu(graph.rescale([(x, constants.multiplier)], constants.shift, 16), constants)
        factor = constants.out_multiplier if multiplier is None else multiplier
        power = constants.out_shift if shift is None else shift
        return [graph.bits(graph.rescale([(curve, factor)], power, 8, zero_point=attributes["out_zero_point"]), 8)]


OPERATOR = IntGelu()
