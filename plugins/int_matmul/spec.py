"""IntMatMul: the product of two int8 activations, requantised where factors are given.

bits=32: a·b in int32;  bits=16 or 8: clip(round(a·b·multiplier / 2^shift))
"""

from __future__ import annotations

from typing import Any

from intaglio.plugins import operation_counts
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values, broadcast, integers
from intaglio.plugins.int_linear.spec import check_factors, finish
from intaglio.plugins.int_matmul.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Shape


class IntMatMul(Operator):
    """a·b over the last two axes; the others broadcast as in MatMul."""

    signature = SIGNATURE

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Other results than the accumulator need their factors."""
        super().check(inputs, attributes)
        check_factors(self.name, inputs[2], attributes)

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: int8, or int32 (the accumulator, or 16-bit values)."""
        a, b = map(integers, inputs[:2])
        return [finish(a @ b, [*inputs[2:], None, None], {**attributes, "activation": ""})]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """[..., M, N]."""
        a, b = inputs[0] or (None, None), inputs[1] or (None, None)
        return [(*broadcast(a[:-2], b[:-2]), a[-2], b[-1])]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """Those of the product."""
        return operation_counts.product(self.shapes(shapes, attributes)[0], shapes[0])

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """MatMulInteger, and the requantisation."""
        a, b, multiplier, shift = inputs
        assert a is not None and b is not None
        product = graph.matmul(graph.operand(a), graph.operand(b))
        bits = attributes["bits"]
        if bits == 32:
            return [product]
        assert multiplier is not None and shift is not None
        return [graph.bits(graph.rescale([(product, multiplier)], shift, bits), bits)]


OPERATOR = IntMatMul()
