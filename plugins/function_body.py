"""Writing the body of an operator in standard ONNX operators: integers in 64 bits, no floating point.

The functions below are `integer_math.py` in ONNX. ONNX has no arithmetic shift of signed integers and its division
truncates, so a shift is a division by a power of two of a value made positive by adding 2^62, which is exact.
Smaller and larger are written as comparisons, and the largest of a row is taken of int32, since ONNX Runtime's Min,
Max, Clip and ReduceMax of int64 (1.31, AVX-512) are wrong for some pairs that differ by 2^31 and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.plugins import constant_folding, integer_math
from intaglio.plugins.integer_math import ExpConstants, GeluConstants, LayerNormConstants

Number = int | float | npt.NDArray[Any]

OFFSET = 2**62
POWERS = 2 ** np.arange(63, dtype=np.int64)
SQRT_STEPS = 5  # of Newton's method from at most twice the root: the error squares, 1 → 1/4 → … < 2^-16


class FunctionBody:
    """Collects the nodes of a body; every method adds nodes and returns the value they compute.

    `last_axis` is what the reductions run over. It is counted from the front where the rank is known, as ONNX Runtime
    1.31 leaves the shape of an empty tensor as it is when the axis is negative.
    """

    def __init__(self, rank: int | None = None) -> None:
        self.nodes: list[ir.Node] = []
        self._constants: dict[ir.Value | None, npt.NDArray[Any]] = {}
        self.last_axis = -1 if rank is None else rank - 1

    def op(self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """One node of a standard operator: its output, or a tuple of them; a constant where that is all it makes."""
        folded = constant_folding.compute(op_type, [self._known(value) for value in inputs], attributes)
        if folded is not None:
            return self.constant(folded, folded.dtype.type)
        made = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
        node = ir.Node("", op_type, inputs, made, num_outputs=outputs)
        self.nodes.append(node)
        return node.outputs[0] if outputs == 1 else tuple(node.outputs)

    def constant(self, value: Number, dtype: type[np.generic] = np.int64) -> ir.Value:
        """A constant, of 64-bit integers unless told."""
        array = np.asarray(value, dtype)
        output: ir.Value = self.op("Constant", value=ir.tensor(array))
        self._constants[output] = array
        return output

    def needed(self, results: Sequence[ir.Value]) -> list[ir.Node]:
        """The nodes without the constants that nothing uses any more, `results` being used."""
        return [node for node in self.nodes if any(value.uses() or value in results for value in node.outputs)]

    def _known(self, value: ir.Value | None) -> npt.NDArray[Any] | None:
        return self._constants[value] if value in self._constants else constant_folding.known(value)

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """`x` in another dtype."""
        output: ir.Value = self.op("Cast", x, to=dtype)
        return output

    def wide(self, x: ir.Value) -> ir.Value:
        """`x` in 64 bits, to compute with."""
        return self.cast(x, ir.DataType.INT64)

    def bits(self, x: ir.Value, bits: int) -> ir.Value:
        """Values limited to 8 bits as int8, to 16 or 32 as int32."""
        return self.cast(x, ir.DataType.INT8 if bits == 8 else ir.DataType.INT32)

    def add(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """a + b."""
        return self._arithmetic("Add", a, b)

    def subtract(self, a: ir.Value | Number, b: ir.Value | Number) -> ir.Value:
        """a - b."""
        return self._arithmetic("Sub", a, b)

    def multiply(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """a·b."""
        return self._arithmetic("Mul", a, b)

    def divide(self, a: ir.Value | Number, b: ir.Value | Number) -> ir.Value:
        """a / b for a >= 0 and b > 0, rounded down."""
        return self._arithmetic("Div", a, b)

    def minimum(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """The smaller one of each pair."""
        other = self._value(b)
        return self.choose(self.at_least(a, other), other, a)

    def maximum(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """The larger one of each pair."""
        other = self._value(b)
        return self.choose(self.at_least(a, other), a, other)

    def clip(self, x: ir.Value, bounds: tuple[int, int]) -> ir.Value:
        """x limited to `bounds`, both included."""
        return self.minimum(self.maximum(x, bounds[0]), bounds[1])

    def choose(self, condition: ir.Value, yes: ir.Value | Number, no: ir.Value | Number) -> ir.Value:
        """yes where the condition holds, else no."""
        output: ir.Value = self.op("Where", condition, self._value(yes), self._value(no))
        return output

    def at_least(self, x: ir.Value, limit: ir.Value | Number) -> ir.Value:
        """x >= limit, as booleans."""
        output: ir.Value = self.op("GreaterOrEqual", x, self._value(limit))
        return output

    def sum(self, x: ir.Value) -> ir.Value:
        """The sum over the last axis, which stays with length 1."""
        return self._reduce("ReduceSum", x)

    def largest(self, x: ir.Value) -> ir.Value:
        """The largest over the last axis, which stays with length 1, of values within int32."""
        return self.wide(self._reduce("ReduceMax", self.cast(x, ir.DataType.INT32)))

    def largest_magnitude(self, x: ir.Value) -> ir.Value:
        """The largest |x| below 2^62 over the last axis: that of the upper half first, then of its lower halves."""
        magnitude = self.op("Abs", x)
        upper = self.divide(magnitude, 2**31)
        top = self.largest(upper)
        lower = self.subtract(magnitude, self.multiply(upper, 2**31))
        candidates = self.choose(self.at_least(upper, top), lower, 0)
        return self.add(self.multiply(top, 2**31), self.largest(candidates))

    def _reduce(self, op_type: str, x: ir.Value) -> ir.Value:
        output: ir.Value = self.op(op_type, x, self.constant(np.array([self.last_axis])), keepdims=1)
        return output

    def power(self, exponent: ir.Value) -> ir.Value:
        """2^exponent for exponents in 0..62."""
        output: ir.Value = self.op("Gather", self.constant(POWERS), exponent)
        return output

    def shift_right(self, x: ir.Value, power: ir.Value | Number) -> ir.Value:
        """floor(x / power) for |x| <= 2^62 and a power of two up to 2^62."""
        if isinstance(power, ir.Value):
            return self.subtract(self.divide(self.add(x, OFFSET), power), self.divide(OFFSET, power))
        return self.subtract(self.divide(self.add(x, OFFSET), power), OFFSET // np.asarray(power))

    def round_shift(self, x: ir.Value, power: ir.Value | Number) -> ir.Value:
        """round(x / power), halves up, for |x| + power/2 <= 2^62."""
        half = self.divide(power, 2) if isinstance(power, ir.Value) else np.asarray(power) // 2
        return self.shift_right(self.add(x, half), power)

    def requantize(self, x: ir.Value, multiplier: ir.Value | Number, shift: ir.Value | Number) -> ir.Value:
        """round(x·multiplier / 2^shift) of 64-bit x within int32; multiplier and shift any integer dtype."""
        factor = self.wide(multiplier) if isinstance(multiplier, ir.Value) else multiplier
        power = self.power(shift) if isinstance(shift, ir.Value) else 2 ** np.asarray(shift, np.int64)
        return self.round_large(self.multiply(x, factor), power)

    def round_large(self, product: ir.Value, power: ir.Value | Number) -> ir.Value:
        """round(product / power), halves up, for |product| <= 2^62.

        Half of the power added to the product would pass 2^62 in the extreme, so the last bit is rounded on its own:
        floor(y + 1/2) = floor((floor(2y) + 1) / 2).
        """
        if isinstance(power, ir.Value):
            half = self.divide(power, 2)
            halved = self.shift_right(product, self.maximum(half, 1))
            return self.choose(self.at_least(power, 2), self.shift_right(self.add(halved, 1), 2), product)
        powers = np.asarray(power)
        halved = self.shift_right(product, np.maximum(powers // 2, 1))
        rounded = self.shift_right(self.add(halved, 1), 2)
        if (powers > 1).all():
            return rounded
        return self.choose(self.constant(powers > 1, np.bool_), rounded, product)

    def multiply_q15(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """round(a·b / 2^15)."""
        return self.round_shift(self.multiply(a, b), 2**15)

    def gelu(self, v: ir.Value, constants: GeluConstants) -> ir.Value:
        """`integer_math.gelu`."""
        distance = self.maximum(self.subtract(constants.saturation, self.op("Abs", v)), 0)
        distance = self.multiply(distance, 2**constants.normalize)
        h = self.multiply_q15(self.multiply_q15(distance, distance), constants.coefficient)
        part = self.multiply_q15(v, self.multiply(h, 2))
        return self.choose(self.at_least(v, 0), self.subtract(v, part), part)

    def exp(self, distance: ir.Value, constants: ExpConstants) -> ir.Value:
        """`integer_math.exp`."""
        short = self.multiply(self.minimum(distance, constants.limit), 2**constants.left)
        short = self.divide(self.add(short, 2**constants.right - 1), 2**constants.right)
        t = self.divide(self.multiply(self.minimum(short, 65535), constants.multiplier), 2**16)
        octaves = self.divide(t, 2**integer_math.EXP_FRACTION)
        fraction = self.subtract(t, self.multiply(octaves, 2**integer_math.EXP_FRACTION))
        offset = self.multiply(fraction, 2 ** (14 - integer_math.EXP_FRACTION))
        from_centre = self.subtract(integer_math.EXP_CENTRE, offset)
        curve = self.multiply_q15(self.multiply_q15(from_centre, from_centre), integer_math.EXP_CURVE)
        mantissa = self.minimum(self.add(curve, integer_math.EXP_FLOOR), 32767)
        return self.divide(self.add(self.divide(self.multiply(mantissa, 2), self.power(octaves)), 1), 2)

    def masked_exp(self, x: ir.Value, mask: ir.Value | None, constants: ExpConstants) -> ir.Value:
        """`integer_math.masked_exp`; the mask broadcasts to x."""
        if mask is None:
            return self.exp(self.subtract(self.largest(x), x), constants)
        lowest = self.choose(mask, x, -(2**31))
        distance = self.subtract(self.largest(lowest), lowest)
        return self.choose(mask, self.exp(distance, constants), 0)

    def bit_length(self, x: ir.Value) -> ir.Value:
        """Number of bits of values in 0..2^63 - 1, whose last axis has length 1; the shape is kept."""
        reached = self.at_least(x, POWERS)
        return self.sum(self.wide(reached))

    def integer_sqrt(self, n: ir.Value) -> ir.Value:
        """floor(√n) for n in [2^30, 2^32) by Newton's method from above."""
        x = self.divide(self.add(self.divide(n, 2**16), 2**16), 2)
        for _ in range(SQRT_STEPS):
            x = self.minimum(x, self.divide(self.add(x, self.divide(n, x)), 2))
        return x

    def normalize(self, x: ir.Value, constants: LayerNormConstants) -> ir.Value:
        """`integer_math.normalize`."""
        deviation = self.subtract(self.multiply(x, constants.channels), self.sum(x))
        largest = self.largest_magnitude(deviation)
        shift = self.subtract(self.bit_length(largest), 15)
        # One of the two powers is 1: left by 2^-shift, then right by 2^shift.
        right, left = self.power(self.maximum(shift, 0)), self.power(self.maximum(self.op("Neg", shift), 0))
        short = self.clip(self.round_shift(self.multiply(deviation, left), right), (-32767, 32767))
        squares = self.sum(self.multiply(short, short))
        if constants.epsilon:
            squares = self.add(squares, self._epsilon(shift, constants))
        even = self.subtract(self.bit_length(squares), 31)
        even = self.multiply(self.shift_right(even, 2), 2)
        down, up = self.power(self.maximum(even, 0)), self.power(self.maximum(self.op("Neg", even), 0))
        # A row without deviation has no root; any number does, as it is multiplied with zeros.
        radicand = self.maximum(self.divide(self.multiply(squares, up), down), 2**30)
        factor = self.divide(constants.root, self.integer_sqrt(radicand))
        half_shift = self.add(self.shift_right(even, 2), 15)
        halved = self.shift_right(self.multiply(short, factor), self.power(self.maximum(half_shift, 0)))
        return self.clip(self.shift_right(self.add(halved, 1), 2), (-32767, 32767))

    def _epsilon(self, shift: ir.Value, constants: LayerNormConstants) -> ir.Value:
        exponent = self.subtract(constants.epsilon_exponent, self.multiply(shift, 2))
        left = self.power(self.clip(exponent, (0, 31)))
        right = self.power(self.clip(self.op("Neg", exponent), (0, 62)))
        return self.divide(self.multiply(self.constant(constants.epsilon), left), right)

    def layer_norm(self, x: ir.Value, weight: ir.Value, bias: ir.Value, constants: LayerNormConstants) -> ir.Value:
        """`integer_math.layer_norm`."""
        limits = (-(2**30), 2**30)
        weighted = self.multiply(self.normalize(x, constants), self.wide(weight))
        scaled = self.clip(self.requantize(weighted, constants.weight_multiplier, constants.weight_shift), limits)
        shifted = self.clip(self.requantize(self.wide(bias), constants.bias_multiplier, constants.bias_shift), limits)
        return self.clip(self.add(scaled, shifted), integer_math.INT16)

    def matmul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The product of two int8 matrices in int32; a may be unsigned."""
        output: ir.Value = self.op("MatMulInteger", a, b)
        return output

    def product(self, x: ir.Value, weight: ir.Value) -> ir.Value:
        """x [..., K] times the transpose of a weight [N, K], both floating point, in the dtype of x."""
        transposed = self.op("Transpose", self.op("CastLike", weight, x), perm=[1, 0])
        output: ir.Value = self.op("MatMul", x, transposed)
        return output

    def weighted_sums(self, p: ir.Value, values: ir.Value) -> ir.Value:
        """The product of Q15 weights (0..32767 in 64 bits) and int8 values in 64 bits: byte by byte of the weights."""
        high = self.divide(p, 256)
        low = self.subtract(p, self.multiply(high, 256))
        planes = [self.wide(self.matmul(self.cast(plane, ir.DataType.UINT8), values)) for plane in (high, low)]
        return self.add(self.multiply(planes[0], 256), planes[1])

    def _arithmetic(self, op_type: str, a: ir.Value | Number, b: ir.Value | Number) -> ir.Value:
        output: ir.Value = self.op(op_type, self._value(a), self._value(b))
        return output

    def _value(self, x: ir.Value | Number) -> ir.Value:
        return x if isinstance(x, ir.Value) else self.constant(x)


def split_heads(graph: FunctionBody, x: ir.Value, num_heads: int, order: Sequence[int]) -> ir.Value:
    """[batch, length, heads·depth] as [batch, length, heads, depth], its axes then put in `order`."""
    width = None if x.shape is None else x.shape[2]
    if isinstance(width, int):
        shape = graph.constant(np.array([0, 0, num_heads, width // num_heads]))
    else:
        depth = graph.op("Div", graph.op("Shape", x, start=2, end=3), graph.constant(num_heads))
        shape = graph.op("Concat", graph.constant(np.array([0, 0, num_heads])), depth, axis=0)
    output: ir.Value = graph.op("Transpose", graph.op("Reshape", x, shape), perm=list(order))
    return output


def split_channels(graph: FunctionBody, x: ir.Value, parts: int) -> tuple[ir.Value, ...]:
    """Equal parts of the last axis."""
    outputs: tuple[ir.Value, ...] = graph.op("Split", x, outputs=parts, axis=-1, num_outputs=parts)
    if x.shape is not None and isinstance(width := x.shape[-1], int):
        for output in outputs:
            output.shape = ir.Shape([*x.shape[:-1], width // parts])
    return outputs
