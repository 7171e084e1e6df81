"""Requantize: integers at one scale to 8 or 16 bits at another, by a dyadic factor per channel.

    y = clip(round(x·multiplier / 2^shift)), halves rounded up

The product of two 32-bit integers and the rounding are exact in 64 bits.
"""

from __future__ import annotations

from typing import Any

from intaglio.plugins import integer_math
from intaglio.plugins.contract import Attributes, Body, Operator, Results, Values, integers, with_bits
from intaglio.plugins.operator_inputs import Array
from intaglio.plugins.requantize.signature import SIGNATURE

LIMITS = {8: integer_math.INT8, 16: integer_math.INT16}


class Requantize(Operator):
    """x·multiplier / 2^shift, rounded and limited to `bits`."""

    signature = SIGNATURE

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: int8, or int32 holding 16-bit values."""
        x, multiplier, shift = map(integers, inputs)
        bits = attributes["bits"]
        return [with_bits(integer_math.clip(integer_math.requantize(x, multiplier, shift), LIMITS[bits]), bits)]

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """One product and one rounded shift."""
        x, multiplier, shift = inputs
        assert x is not None and multiplier is not None and shift is not None
        bits = attributes["bits"]
        return [graph.bits(graph.rescale([(x, multiplier)], shift, bits), bits)]


OPERATOR = Requantize()
