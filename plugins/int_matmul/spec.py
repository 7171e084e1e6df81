"""IntMatMul: the product of two int8 activations, requantised where factors are given.

bits=32: a·b in int32;  bits=16 or 8: clip(round(a·b·multiplier / 2^shift))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from intaglio.plugins.contract import Attribute, Operator, Output, broadcast, integers
from intaglio.plugins.function_body import FunctionBody
from intaglio.plugins.int_linear.spec import check_factors, finish
from intaglio.plugins.operator_inputs import FACTORS, Array, Given, Input, Shape, factors

if TYPE_CHECKING:
    import onnx_ir as ir


class IntMatMul(Operator):
    """a·b over the last two axes; the others broadcast as in MatMul."""

    name = "IntMatMul"
    inputs = (
        Input("a", ("int8",), ("...", "M", "K")),
        Input("b", ("int8",), ("...", "K", "N")),
        *factors("N", optional=True),
    )
    groups = (FACTORS,)
    attributes = (Attribute("bits", int, 32, choices=(8, 16, 32)),)

    def check(self, inputs: Sequence[Given | None], attributes: Mapping[str, Any]) -> None:
        """Other results than the accumulator need their factors."""
        super().check(inputs, attributes)
        check_factors(self.name, inputs[2], attributes)

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: int8, or int32 (the accumulator, or 16-bit values)."""
        a, b = map(integers, inputs[:2])
        return [finish(a @ b, [*inputs[2:], None, None], {**attributes, "activation": ""})]

    def outputs(self, shapes: Sequence[Shape | None], attributes: Mapping[str, Any]) -> list[Output]:
        """[..., M, N]."""
        a, b = shapes[0] or (None, None), shapes[1] or (None, None)
        shape = (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])
        return [Output("y", "int8" if attributes["bits"] == 8 else "int32", shape)]

    def body(
        self, graph: FunctionBody, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
    ) -> list[ir.Value]:
        """MatMulInteger, and the requantisation."""
        a, b, multiplier, shift = inputs
        assert a is not None and b is not None
        product = graph.matmul(graph.operand(a), graph.operand(b))
        bits = attributes["bits"]
        if bits == 32:
            return [product]
        assert multiplier is not None and shift is not None
        return [graph.bits(graph.rescale([(product, multiplier)], shift, bits), bits)]
