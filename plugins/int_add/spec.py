"""IntAdd: the sum of two tensors with scales of their own, rounded once (the residual sum of an encoder).

    y = clip(round((x·x_multiplier + y·y_multiplier) / 2^shift))

With multipliers below 2^30 each product stays within ±2^61, so the rounded sum is exact in 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import integer_math
from intaglio.plugins.contract import (
    Array,
    Attribute,
    Input,
    Operator,
    Output,
    Shape,
    broadcast,
    integers,
    with_bits,
)
from intaglio.plugins.requantize.spec import LIMITS

if TYPE_CHECKING:
    import onnx_ir as ir

    from intaglio.plugins.function_body import FunctionBody

MULTIPLIER_LIMIT = 2**30


class IntAdd(Operator):
    """x·x_multiplier + y·y_multiplier, over 2^shift, rounded and limited to `bits`; x and y broadcast."""

    name = "IntAdd"
    inputs = (
        Input("x", ("int8", "int32"), "int8 or int32 [..., C]"),
        Input("y", ("int8", "int32"), "int8 or int32 [..., C]"),
        Input("x_multiplier", ("int32",), "int32 [C or 1], below 2^30"),
        Input("y_multiplier", ("int32",), "int32 [C or 1], below 2^30"),
        Input("shift", ("int32",), "int32 [C or 1], 0..62"),
    )
    attributes = (Attribute("bits", int, 16, choices=(8, 16)),)

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[sum]: int8, or int32 holding 16-bit values."""
        x, y, x_multiplier, y_multiplier, shift = map(integers, inputs)
        for multiplier in (x_multiplier, y_multiplier):
            if multiplier.size and np.abs(multiplier).max() >= MULTIPLIER_LIMIT:
                raise GraphError(f"IntAdd: multiplier {np.abs(multiplier).max()}, expected below 2^30. Halve it.")
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
        x, y, x_multiplier, y_multiplier = (graph.wide(value) for value in inputs[:4] if value is not None)
        shift = inputs[4]
        assert shift is not None
        total = graph.add(graph.multiply(x, x_multiplier), graph.multiply(y, y_multiplier))
        rounded = graph.round_large(total, graph.power(shift))
        return [graph.bits(graph.clip(rounded, LIMITS[attributes["bits"]]), attributes["bits"])]
