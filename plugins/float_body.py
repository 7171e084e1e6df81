"""Bodies in floating point, for GPU runtimes without an integer matrix product, such as TensorRT-RTX.

An operator's inputs and outputs are the same integers; between them the values are float32, which needs a fraction of
the nodes of 64-bit integer arithmetic and runs fast on GPUs.

A product of int8 matrices is DequantizeLinear, MatMul, and a Cast back: the form that TensorRT turns into an INT8
product where the GPU has one. It is float16, since the smallest target, Turing, has no float32 product. All its scales
are powers of two, chosen for the largest sums that the operators allow, so that every factor is exact and no sum
overflows float16, wherever it is rounded. The integer that comes back is off by what float16's 11 bits cost, and by
nothing else:

    |product - a·b| <= 2^-11·|a·b|,  exact below 2048

where the runtime adds up in float32 or in integers, as ONNX Runtime and TensorRT's INT8 products do; where it adds up
in float16, every partial sum is rounded so. Sums weighted by exponentials lose as much again for the weights. All else
is off by float32's 2^-24, far less, and an integer rounded from close to a half may be off by one.

The possible differences, with f the factor from 16 bits or a sum to the result:

    Requantize, IntAdd      1
    IntGelu                 1 + 4·f
    IntSoftmax              1 + 2^-10·2·127 + 3 / 32767 / out_scale
    IntLayerNorm            2 + 2^-13·|result| in 16 bits; 1 + that·f in 8
    IntLinear, IntMatMul    2^-11·|a·b| in 32 bits; 1 + that·f in 16 and 8
    IntRotary               1 + 2^7·f
    IntAttention            1 + f·256·largest |value|·2·(exp(2^-10·largest |score|) - 1 + 2^-10), and a little

Over a whole encoder, being off by one here and there is noise like that of quantisation itself: the quality against the
float model stays the same, but embeddings are not bit-identical to the integer kernels'. Inputs beyond ±2^24 are
rounded to 24 bits. The order of operations follows the integer bodies; in IntLayerNorm, the first entry of a row
is subtracted first, so that a constant row returns the bias.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from intaglio.plugins import integer_math
from intaglio.plugins.body_arithmetic import Number
from intaglio.plugins.function_body import FunctionBody, Term
from intaglio.plugins.integer_math import ExpConstants, GeluConstants, LayerNormConstants

# Sums stay below 2^31 (IntLinear's limit), so times 2^-16 they stay below 2^15, and float16 ends at 65504.
FACTOR = 2.0**-8  # of both matrices

# Weights below 2^15 and values up to 2^7, for rows of up to 2^16: sums below 2^38, so times 2^-23 below 2^15.
WEIGHT_FACTOR, VALUE_FACTOR = 2.0**-9, 2.0**-14  # the largest weight becomes 2^6, the smallest value 2^-14

TINY = 1e-20  # a variance for constant rows, whose deviations are zero


class FloatBody(FunctionBody):
    """A function body that computes in float32, and its matrix products in float16; see above for the errors."""

    dtype = ir.DataType.FLOAT

    def clip(self, x: ir.Value, bounds: tuple[int, int]) -> ir.Value:
        """x limited to `bounds`, both included."""
        return self.minimum(self.maximum(x, bounds[0]), bounds[1])

    def bits(self, x: ir.Value, bits: int) -> ir.Value:
        """Values limited to 8 bits as int8, to 16 or 32 as int32."""
        return self.cast(x, ir.DataType.INT8 if bits == 8 else ir.DataType.INT32)

    def round_shift(self, x: ir.Value, power: int) -> ir.Value:
        """round(x / power), halves up."""
        return self.round(self._over(x, self.value(power)))

    def requantize(self, x: ir.Value, multiplier: ir.Value | Number, shift: ir.Value | Number) -> ir.Value:
        """round(x·multiplier / 2^shift); the factor is one constant where both are."""
        factor = self._over(self.wide(self.value(multiplier)), self.power(shift))
        return self.round(self.multiply(self.wide(x), factor))

    def rescale(
        self,
        terms: Sequence[Term],
        shift: ir.Value | Number,
        bits: int,
        bias: ir.Value | None = None,
        zero_point: int = 0,
    ) -> ir.Value:
        """round((Σ x·multiplier + bias·multiplier) / 2^shift) + zero_point limited to 8 or 16 bits, in float32."""
        power, total = self.power(shift), None
        for x, multiplier in terms:
            value = self.wide(x) if bias is None else self.add(self.wide(x), self.wide(bias))
            product = self.multiply(value, self._over(self.wide(self.value(multiplier)), power))
            total, bias = product if total is None else self.add(total, product), None
        assert total is not None
        rounded = self.round(total)
        if zero_point:
            rounded = self.add(rounded, zero_point)
        return self.clip(rounded, (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))

    def normalize(self, x: ir.Value, constants: LayerNormConstants) -> ir.Value:
        """(x - mean) / √(variance + epsilon) in Q(fraction) within 16 bits; zeros for a constant row."""
        x = self.wide(x)
        first = self.op("Gather", x, self.constant(np.array([0])), axis=self.last_axis)
        shifted = self.subtract(x, first)  # exactly zero for a constant row, whose mean may be rounded
        deviation = self.subtract(shifted, self.reduce("ReduceMean", shifted))
        variance = self.reduce("ReduceMean", self.multiply(deviation, deviation))
        epsilon = constants.epsilon * 2.0**constants.epsilon_exponent / constants.channels**3
        unit = self._over(deviation, self.op("Sqrt", self.add(variance, epsilon + TINY)))
        return self.clip(self.round(self.multiply(unit, 2.0**constants.fraction)), (-32767, 32767))

    def multiply_q15(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """round(a·b / 2^15)."""
        return self.round_shift(self.multiply(a, b), 2**15)

    def gelu(self, v: ir.Value, constants: GeluConstants) -> ir.Value:
        """`integer_math.gelu`, step by step: a table would be a Gather of single numbers."""
        distance = self.maximum(self.subtract(constants.saturation, self.op("Abs", v)), 0)
        distance = self.multiply(distance, 2**constants.normalize)
        square = self.multiply(self.multiply_q15(distance, distance), 2**constants.square_shift)
        h = self.multiply_q15(self.multiply_q15(square, square), constants.coefficient)
        part = self.multiply_q15(v, self.multiply(h, 4))
        return self.choose(self.at_least(v, 0), self.subtract(v, part), part)

    def exp(self, distance: ir.Value, constants: ExpConstants) -> ir.Value:
        """`integer_math.exp`, step by step."""
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
        x = self.wide(x)
        if mask is None:
            return self.exp(self.subtract(self.largest(x), x), constants)
        lowest = self.choose(mask, x, -(2**31))
        distance = self.subtract(self.largest(lowest), lowest)
        return self.choose(mask, self.exp(distance, constants), 0)

    def softmax_rescale(self, p: ir.Value, out_scale: float) -> ir.Value:
        """`integer_math.softmax_rescale`."""
        multiplier, shift = integer_math.softmax_constants(out_scale)
        factor = self.divide(multiplier << 31, self.maximum(self.sum(p), 1))
        return self.clip(self.round_shift(self.multiply(p, factor), 2 ** (shift + 31)), integer_math.INT8)

    def other_factor(self, product: ir.Value, x: ir.Value) -> ir.Value | None:
        """None: TensorRT gets every operator's product."""
        return None

    def numbers(self, packed: ir.Value, bits: int) -> ir.Value | None:
        """None: unpacked where they are used, by arithmetic that TensorRT supports."""
        return None

    def operand(self, x: ir.Value) -> ir.Value:
        """int8 unchanged."""
        return x

    def matmul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The product of two int8 matrices in int32, off by 2^-11 of itself."""
        product = self.op("MatMul", self._dequantize(a, FACTOR), self._dequantize(b, FACTOR))
        return self.cast(self.multiply(self.wide(product), 1 / FACTOR**2), ir.DataType.INT32)

    def weighted_sums(self, p: ir.Value, values: ir.Value) -> ir.Value:
        """The product of Q15 weights and int8 values, off by 2^-11 of the sum of magnitudes, and of itself."""
        weights = self.cast(self.multiply(p, WEIGHT_FACTOR), ir.DataType.FLOAT16)
        product = self.op("MatMul", weights, self._dequantize(values, VALUE_FACTOR))
        return self.multiply(self.wide(product), 1 / (WEIGHT_FACTOR * VALUE_FACTOR))

    def _dequantize(self, x: ir.Value, factor: float) -> ir.Value:
        return self.op("DequantizeLinear", x, self.constant(factor, np.float16))
