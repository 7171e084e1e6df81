"""IntAdd: the sum of two tensors with scales of their own, rounded once (the residual sum of an encoder).

    y = clip(round((x·x_multiplier + y·y_multiplier) / 2^shift))

With multipliers below 2^30 each product stays within ±2^61, so the rounded sum is exact in 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from intaglio.plugins import integer_math
from intaglio.plugins.contract import Attribute, Operator, Output, broadcast, integers, with_bits
from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.operator_inputs import SHIFTS, Array, Given, Input, Shape, check_channels
from intaglio.plugins.requantize.spec import LIMITS

if TYPE_CHECKING:
    import onnx_ir as ir

TERM_MULTIPLIERS = (1 - 2**30, 2**30 - 1)  # two products of int32 with them leave room for their sum in 64 bits


class IntAdd(Operator):
    """x·x_multiplier + y·y_multiplier, over 2^shift, rounded and limited to `bits`; x and y broadcast."""

    name = "IntAdd"
    inputs = (
        Input("x", ("int8", "int32")),
        Input("y", ("int8", "int32"), note="which x broadcasts with to [..., C]"),
        Input("x_multiplier", ("int32",), ("C|1",), TERM_MULTIPLIERS),
        Input("y_multiplier", ("int32",), ("C|1",), TERM_MULTIPLIERS),
        Input("shift", ("int32",), ("C|1",), SHIFTS),
    )
    attributes = (Attribute("bits", int, 16, choices=(8, 16)),)

    def check(self, inputs: Sequence[Given | None], attributes: Mapping[str, Any]) -> None:
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

    def outputs(self, shapes: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Output]:
        """The common shape of x and y."""
        shape = broadcast(shapes[0] or (), shapes[1] or ())
        return [Output("sum", "int8" if attributes["bits"] == 8 else "int32", shape)]

    def body(
        self, graph: FunctionBody, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
    ) -> list[ir.Value]:
        """Two products, their sum, one rounded shift."""
        x, y, x_multiplier, y_multiplier, shift = (value for value in inputs if value is not None)
        bits = attributes["bits"]
        return [graph.bits(graph.rescale([(x, x_multiplier), (y, y_multiplier)], shift, bits), bits)]
