"""IntLayerNorm: i-LayerNorm (I-BERT, equation 2.15, algorithm 4) over the last axis, from any int32 to int8.

The mean is never rounded (channels·x - sum is exact), each row is normalised by its own power of two before it is
squared, and the square root is exact, so neither large nor small rows lose bits, and a constant row gives the bias.

The weighted result has 16 bits at `wide_scale`. It is the second output (for the residual branch); the first is it,
requantised to 8 bits, with a factor per channel where one is given.

With a residual, x is first replaced by the 16-bit sum that IntAdd gives of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import integer_math
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values, integers, with_bits
from intaglio.plugins.int_add.spec import IntAdd
from intaglio.plugins.int_layer_norm.signature import SIGNATURE
from intaglio.plugins.integer_math import LayerNormConstants
from intaglio.plugins.operator_inputs import Array, Shape, check_shape_of

SUM = IntAdd()
SUM_ATTRIBUTES = {"bits": 16}


class IntLayerNorm(Operator):
    """LayerNorm of x·scale with weight·weight_scale and bias·bias_scale, over out_scale.

    A `wide_scale` of 0 stands for out_scale / 256, the finest at which 16 bits hold what 8 bits do at out_scale.
    `multiplier` and `shift` take the place of wide_scale / out_scale. `residual` and the three inputs after it come
    together or not at all: x is then clip16(round((x·x_multiplier + residual·residual_multiplier) / 2^sum_shift)).
    """

    signature = SIGNATURE

    def constants(self, channels: int, attributes: Attributes) -> LayerNormConstants:
        """The constants of the kernels. Raises `GraphError` for scales or channels out of range."""
        return integer_math.layer_norm_constants(channels, **attributes)

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Scales are in the range of the arithmetic; a residual has the shape of x."""
        super().check(inputs, attributes)
        x, weight, residual = inputs[0], inputs[1], inputs[5]
        channels = weight.shape[0] if weight is not None and weight.shape else None
        if isinstance(channels, int):
            self.constants(channels, attributes)
        if x is not None and residual is not None:
            check_shape_of(self.name, "residual", residual.shape, "x", x.shape)

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y, wide]: int8, and int32 holding 16-bit values."""
        x, weight, bias = map(integers, (_with_residual(inputs), *inputs[1:3]))
        multiplier, shift = inputs[3:5]
        constants = self.constants(x.shape[-1], attributes)
        wide = integer_math.layer_norm(x, weight, bias, constants) if x.size else np.zeros(x.shape, np.int64)
        y = integer_math.requantize(
            wide,
            constants.out_multiplier if multiplier is None else multiplier,
            constants.out_shift if shift is None else shift,
        )
        return [with_bits(integer_math.clip(y, integer_math.INT8), 8), with_bits(wide, 16)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """Both with the shape of x."""
        return [inputs[0] or ()] * 2

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """The same steps; the weight defines the channels, and must have a fixed shape."""
        x, weight, bias, multiplier, shift, *residual = inputs
        if residual[0] is not None:
            (x,) = SUM.body(graph, [x, *residual], SUM_ATTRIBUTES)
        assert x is not None and weight is not None and bias is not None
        channels = None if weight.shape is None else weight.shape[0]
        if not isinstance(channels, int):
            raise GraphError(f"IntLayerNorm: the length of weight ({weight.name}) is not a number. Make it a constant.")
        constants = self.constants(channels, attributes)
        wide = graph.layer_norm(x, weight, bias, constants)
        factor = constants.out_multiplier if multiplier is None else multiplier
        y = graph.rescale([(wide, factor)], constants.out_shift if shift is None else shift, 8)
        return [graph.bits(y, 8), graph.bits(wide, 16)]


OPERATOR = IntLayerNorm()


def _with_residual(inputs: Sequence[Array | None]) -> Array | None:
    """x, or its sum with the residual."""
    x, residual = inputs[0], inputs[5]
    return x if residual is None else SUM.compute(x, residual, *inputs[6:], **SUM_ATTRIBUTES)[0]
