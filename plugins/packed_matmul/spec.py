"""PackedMatMul: x times a weight of float32, float16 or bfloat16, in float32.

What ONNX's MatMul computes with the weight cast to float32, and transposed where that is stated, as the table of
embeddings that is the head too. Kernels pack a constant weight once, and add up the products of each result one after
another, so that the result of a row does not depend on the rows beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import operation_counts
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values
from intaglio.plugins.operator_inputs import Array, Shape
from intaglio.plugins.packed_matmul.signature import SIGNATURE


class PackedMatMul(Operator):
    """x·weight, or x·weightᵀ."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """x has as many channels as the weight has rows, or, transposed, columns."""
        super().check(inputs, attributes)
        x, weight = inputs
        if x is None or weight is None or x.shape is None or weight.shape is None:
            return
        channels, depth = x.shape[-1], weight.shape[attributes["transposed"]]
        if isinstance(channels, int) and isinstance(depth, int) and channels != depth:
            raise GraphError(f"{self.name}: x has {channels} channels, expected {depth}, as the weight has.")

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: float32 [..., N], computed in float64."""
        x, weight = (np.asarray(each) for each in inputs)
        weight = weight.T if attributes["transposed"] else weight
        return [(x.astype(np.float64) @ weight.astype(np.float64)).astype(x.dtype)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The shape of x, with the weight's channels."""
        x, weight = inputs
        return [(*(x or (None,))[:-1], (weight or (None, None))[1 - attributes["transposed"]])]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """Those of the product."""
        return operation_counts.product(self.shapes(shapes, attributes)[0], shapes[0])

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """MatMul with the weight in float32."""
        x, weight = inputs
        assert x is not None and weight is not None
        return [graph.product(x, weight) if attributes["transposed"] else graph.float_matmul(x, weight)]


OPERATOR = PackedMatMul()
