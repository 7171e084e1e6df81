"""LowRankMatMul: a low-rank change of a product, chosen for each row of a batch, added to y.

    y[b] + scale[b] · factor[a] · x[b] · first[a]ᵀ · second[a],   a = adapter[b]

What a LoRA adapter adds to the result of a linear layer (Hu et al. 2021, equation 3), whose weight is unchanged. The
matrices of all adapters are stacked, and no row copies its own. `factor` is of an adapter, alpha / r, and lets matrices
of small numbers be float16; `scale` is of a row, as its request chose.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import operation_counts
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values
from intaglio.plugins.low_rank_matmul.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Shape


class LowRankMatMul(Operator):
    """y + scale·x·firstᵀ·second, with the matrices of each row's adapter."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Each row's adapter exists."""
        super().check(inputs, attributes)
        first, adapter = inputs[1], inputs[4]
        count = None if first is None or first.shape is None else first.shape[0]
        if adapter is None or adapter.values is None or not isinstance(count, int):
            return
        numbers = adapter.values.astype(np.int64)
        outside = numbers[(numbers < 0) | (numbers >= count)]
        if outside.size:
            raise GraphError(f"{self.name}: adapter {outside[0]}, expected 0 to {count - 1}.")

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[the sum]: [batch, tokens, N] in the dtype of y, computed in float64."""
        x, first, second, factor, adapter, scale, y = (np.asarray(each) for each in inputs)
        x, first, second, added_to = (each.astype(np.float64) for each in (x, first, second, y))
        factors = factor.astype(np.float64)[adapter][:, None, None] * scale
        changes = x @ first[adapter].swapaxes(1, 2) * factors @ second[adapter]
        return [(added_to + changes).astype(y.dtype)]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """The shape of y."""
        return [inputs[6] or ()]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """Those of both products."""
        x, first, *_, y = shapes
        hidden = None if x is None or first is None else (*x[:-1], first[1])
        return operation_counts.product(hidden, x) + operation_counts.product(y, hidden)

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """The matrices of each row's adapter by Gather, and two MatMul."""
        import onnx_ir as ir

        x, first, second, factor, adapter, scale, y = inputs
        assert x is not None and first is not None and second is not None and factor is not None
        assert adapter is not None and scale is not None and y is not None
        own = graph.op("Transpose", graph.op("Gather", first, adapter, axis=0), perm=[0, 2, 1])
        own_factor = graph.op("Unsqueeze", graph.op("Gather", factor, adapter), graph.constant(np.array([1, 2])))
        factors = graph.op("Mul", own_factor, scale)
        # In float32, as the numbers of matrices in float16 may be large, and the factor small.
        hidden = graph.op("Mul", graph.float_matmul(graph.cast(x, ir.DataType.FLOAT), own), factors)
        change = graph.float_matmul(hidden, graph.op("Gather", second, adapter, axis=0))
        return [graph.cast_like(graph.op("Add", graph.cast(y, ir.DataType.FLOAT), change), y)]


OPERATOR = LowRankMatMul()
