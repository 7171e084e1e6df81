"""IntSoftmax: i-softmax (I-BERT, algorithm 3) of int32 values over the last axis, as int8.

Exponentials relative to the row's maximum in 15 bits, divided by their exact sum. The 8 bits of the output are its
limit: at 1/127 an entry below 1/254 is 0, so rows of 256 equal entries vanish. `IntAttention` has no such limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intaglio.plugins import integer_math
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Values, integers, with_bits
from intaglio.plugins.int_softmax.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array


class IntSoftmax(Operator):
    """softmax(x·scale) / out_scale over the entries that the mask keeps; 0 elsewhere, and in rows without any."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Both scales are in the range of the arithmetic."""
        super().check(inputs, attributes)
        integer_math.exp_constants(attributes["scale"])
        integer_math.softmax_constants(attributes["out_scale"])

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: int8."""
        x = integers(inputs[0])
        mask = None if inputs[1] is None else np.broadcast_to(inputs[1].astype(np.bool_), x.shape)
        p = integer_math.masked_exp(x, mask, integer_math.exp_constants(attributes["scale"]))
        return [with_bits(integer_math.softmax_rescale(p, attributes["out_scale"]), 8)]

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """The same steps, the exponential as a table."""
        x, mask = inputs
        assert x is not None
        p = graph.masked_exp(x, mask, integer_math.exp_constants(attributes["scale"]))
        return [graph.bits(graph.softmax_rescale(p, attributes["out_scale"]), 8)]


OPERATOR = IntSoftmax()
