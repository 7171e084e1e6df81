"""ScaledClamp: x·factor, limited to low..high. The product is rounded once, so every backend gives the same bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins.contract import Operator
from intaglio.plugins.operator_inputs import Array, Shape
from intaglio.plugins.scaled_clamp.signature import SIGNATURE

if TYPE_CHECKING:
    import onnx_ir as ir

    from intaglio.plugins.function_body import FunctionBody


class ScaledClamp(Operator):
    """min(max(x·factor, low), high); an omitted factor is 1."""

    signature = SIGNATURE

    def complete(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Check that the limits are in order."""
        complete = super().complete(attributes)
        if not complete["low"] <= complete["high"]:
            raise GraphError(f"{self.name}: low={complete['low']} is above high={complete['high']}. Swap them.")
        return complete

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: float32."""
        x, factor = inputs
        assert x is not None
        scaled = x if factor is None else np.multiply(x, factor)
        return [np.clip(scaled, np.float32(attributes["low"]), np.float32(attributes["high"]))]

    def shapes(self, inputs: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Shape]:
        """The shape of x."""
        return [inputs[0] or ()]

    def operations(self, shapes: Sequence[Shape | None], attributes: Mapping[str, Any]) -> int:
        """One multiplication per element if there is a factor."""
        x, factor = shapes
        return 0 if x is None or factor is None else math.prod(length for length in x if isinstance(length, int))

    def body(
        self, graph: FunctionBody, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
    ) -> list[ir.Value]:
        """Mul and Clip."""
        x, factor = inputs
        limits = (graph.constant(attributes[name], np.float32) for name in ("low", "high"))
        return [graph.op("Clip", x if factor is None else graph.op("Mul", x, factor), *limits)]


OPERATOR = ScaledClamp()
