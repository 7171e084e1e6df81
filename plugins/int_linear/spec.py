"""IntLinear: int8 activations times an int8 weight, with what follows a linear layer in its epilogue.

    accumulator = x·weight + bias                               int32
    bits=32: the accumulator
    bits=16: 16-bit values, clip(round(accumulator·multiplier / 2^shift))
    bits=8:  the same in 8 bits
    activation="gelu": the 16-bit values, which lie at i-GELU's inner scale of out_scale, through i-GELU to 8 bits,
             by out_multiplier and out_shift where they are given, plus out_zero_point, the integer that stands for 0
    gate: what the activation gave, times the gate of a gated feed-forward layer, by gate_multiplier and gate_shift to
             8 bits
    residual: the 16-bit values times `multiple`, added to an int32 residual stream that is not rounded; modulo 2^32

The sum is exact in int32 for up to 131071 rows of weight, less what the bias takes: 2^14·131071 < 2^31.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from intaglio.errors import GraphError
from intaglio.plugins import integer_math, operation_counts
from intaglio.plugins.contract import Attributes, Body, Inputs, Operator, Results, Shapes, Values, integers, with_bits
from intaglio.plugins.int_linear.signature import SIGNATURE
from intaglio.plugins.operator_inputs import Array, Given, Shape, check_shape_of
from intaglio.plugins.requantize.spec import LIMITS


class IntLinear(Operator):
    """x·weight + bias, requantised and activated as the attributes say."""

    signature = SIGNATURE

    def complete(self, attributes: Attributes) -> dict[str, Any]:
        """Checked: an activation gives 8 bits."""
        complete = super().complete(attributes)
        if complete["activation"] and complete["bits"] != 8:
            raise GraphError(
                f"IntLinear: activation={complete['activation']!r} with bits={complete['bits']}, expected 8."
            )
        return complete

    def check(self, inputs: Inputs, attributes: Attributes) -> None:
        """Other results than the accumulator need their factors; scales are in the range of the arithmetic."""
        super().check(inputs, attributes)
        check_factors(self.name, inputs[3], attributes)
        check_gate_and_residual(inputs, attributes)
        check_out_zero_point(inputs, attributes)
        if attributes["activation"]:
            gelu_constants(attributes)

    def compute(self, *inputs: Array | None, **attributes: Any) -> list[Array]:
        """[y]: int8, or int32 (the accumulator, or 16-bit values)."""
        x, weight, bias = map(integers, inputs[:3])
        y = finish(x @ weight + bias, inputs[3:7], attributes)
        gate, gate_multiplier, gate_shift, residual, multiple = inputs[7:]
        if gate_multiplier is not None and gate_shift is not None:
            product = integers(y) * integer_math.clip(integers(gate), integer_math.INT16)
            gated = integer_math.requantize(product, gate_multiplier, gate_shift)
            return [with_bits(integer_math.clip(gated, LIMITS[8]), 8)]
        if residual is not None:
            return [with_bits(integers(residual) + integers(y) * integers(multiple), 32)]
        return [y]

    def shapes(self, inputs: Shapes, attributes: Attributes) -> list[Shape]:
        """[..., N]."""
        x, weight = inputs[0] or (), inputs[1] or (None,)
        return [(*x[:-1], weight[-1])]

    def operations(self, shapes: Shapes, attributes: Attributes) -> int:
        """Those of the product."""
        return operation_counts.product(self.shapes(shapes, attributes)[0], shapes[0])

    def body(self, graph: Body, inputs: Values, attributes: Attributes) -> Results:
        """MatMulInteger, and the epilogue."""
        x, weight, bias, multiplier, shift, out_multiplier, out_shift, *others = inputs
        gate, gate_multiplier, gate_shift, residual, multiple = others
        assert x is not None and weight is not None and bias is not None
        bits = attributes["bits"]
        product = graph.matmul(graph.operand(x), graph.operand(weight))
        if bits == 32:
            return [graph.bits(graph.add(graph.wide(product), graph.wide(bias)), 32)]
        assert multiplier is not None and shift is not None
        terms = [(product, multiplier)]
        if not attributes["activation"]:
            y = graph.rescale(terms, shift, bits, bias)
            if residual is not None and multiple is not None:
                return [graph.op("Add", residual, graph.op("Mul", graph.bits(y, bits), multiple))]
            return [graph.bits(y, bits)]
        constants = gelu_constants(attributes)
        curve = graph.gelu(graph.rescale(terms, shift, 16, bias), constants)
        factor = constants.out_multiplier if out_multiplier is None else out_multiplier
        power = constants.out_shift if out_shift is None else out_shift
        y = graph.rescale([(curve, factor)], power, bits, zero_point=attributes["out_zero_point"])
        if gate is not None and gate_multiplier is not None and gate_shift is not None:
            limited = graph.clip(graph.wide(gate), integer_math.INT16)
            y = graph.rescale([(graph.multiply(graph.wide(y), limited), gate_multiplier)], gate_shift, bits)
        return [graph.bits(y, bits)]


OPERATOR = IntLinear()


def check_factors(name: str, multiplier: Given | None, attributes: Attributes) -> None:
    """Raise `GraphError` where the factors of a matrix product are left out and `bits` needs them."""
    if attributes["bits"] != 32 and multiplier is None:
        bits = attributes["bits"]
        raise GraphError(f"{name}: bits={bits} needs the inputs multiplier and shift. Give both, or bits=32.")


def check_gate_and_residual(inputs: Inputs, attributes: Attributes) -> None:
    """Raise `GraphError` unless a gate follows an activation, a residual 16 bits, and both have the shape of y."""
    x, weight, gate, residual = (inputs[index] for index in (0, 1, 7, 10))
    if gate is not None and not attributes["activation"]:
        raise GraphError("IntLinear: a gate without an activation, expected activation='gelu'.")
    if residual is not None and (attributes["activation"] or attributes["bits"] != 16):
        raise GraphError(f"IntLinear: a residual with bits={attributes['bits']}, expected 16 and no activation.")
    columns = None if weight is None or weight.shape is None else weight.shape[-1]
    shape = None if x is None or x.shape is None else (*x.shape[:-1], columns)
    for name, each in (("gate", gate), ("residual", residual)):
        if each is not None:
            check_shape_of("IntLinear", name, each.shape, "y", shape)


def check_out_zero_point(inputs: Inputs, attributes: Attributes) -> None:
    """Raise `GraphError` for one beyond 8 bits, or where y is not what an activation gives."""
    zero_point, gated = attributes["out_zero_point"], inputs[7] is not None
    integer_math.check_zero_point("IntLinear", zero_point)
    if zero_point and (gated or not attributes["activation"]):
        where = "with a gate" if gated else "without an activation"
        raise GraphError(f"IntLinear: out_zero_point={zero_point} {where}, expected 0.")


def gelu_constants(attributes: Attributes) -> integer_math.GeluConstants:
    """Those of the epilogue, whose input lies at the inner scale already."""
    inner = integer_math.gelu_inner_scale(attributes["out_scale"])
    return integer_math.gelu_constants(inner, attributes["out_scale"])


def finish(accumulator: integer_math.Integers, given: Sequence[Array | None], attributes: Attributes) -> Array:
    """The epilogue of an int32 accumulator; `given` are multiplier, shift, out_multiplier, out_shift."""
    bits = attributes["bits"]
    if accumulator.size and not -(2**31) <= accumulator.min() <= accumulator.max() < 2**31:
        raise GraphError("the sum of an integer matrix product overflows int32. Split the rows of the weight.")
    if bits == 32:
        return with_bits(accumulator, 32)
    multiplier, shift, out_multiplier, out_shift = given
    assert multiplier is not None and shift is not None
    y = integer_math.requantize(accumulator, multiplier, shift)
    if attributes["activation"]:
        constants = gelu_constants(attributes)
        curve = integer_math.gelu(integer_math.clip(y, integer_math.INT16), constants)
        y = integer_math.requantize(
            curve,
            np.int64(constants.out_multiplier) if out_multiplier is None else out_multiplier,
            np.int64(constants.out_shift) if out_shift is None else out_shift,
        )
        y = y + attributes["out_zero_point"]
    return with_bits(integer_math.clip(y, LIMITS[bits]), bits)
