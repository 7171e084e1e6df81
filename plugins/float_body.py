"""Bodies in floating point, for GPUs' runtimes that have no integer matrix product, such as TensorRT-RTX.

What an operator takes and gives are the same integers; between them they travel in float32, where a whole body is a
fraction of the nodes that 64-bit integers need, and runs as GPUs like it.

A product of int8 matrices is DequantizeLinear, MatMul, and a Cast back: the form that TensorRT turns into an INT8
product where the GPU has one. It is float16, since the smallest target, Turing, has no float32 product. All its scales
are powers of two, chosen for the largest sums that the operators allow, so that every factor is exact and no sum
overflows float16, wherever it is rounded. The integer that comes back is off by what float16's 11 bits cost, and by
nothing else:

    |product - a·b| <= 2^-11·|a·b|,  exact below 2048

where the runtime adds up in float32 or in integers, as ONNX Runtime and TensorRT's INT8 products do; where it adds up
in float16, every partial sum is rounded so. Sums weighted by exponentials lose as much again for the weights. All else
is off by float32's 2^-24, far less, and an integer that was to be rounded from close to a half may be its neighbour.

How far apart results may be then, f being the factor that brings 16 bits or a sum to the result:

    Requantize, IntAdd      1
    IntGelu                 1 + 4·f
    IntSoftmax              1 + 2^-10·2·127 + 3 / 32767 / out_scale
    IntLayerNorm            2 + 2^-13·|result| in 16 bits; 1 + that·f in 8
    IntLinear, IntMatMul    2^-11·|a·b| in 32 bits; 1 + that·f in 16 and 8
    IntAttention            1 + f·256·largest |value|·2·(exp(2^-10·largest |score|) - 1 + 2^-10), and a little

Over a whole encoder a neighbour here and there is noise like that of quantisation itself: what it is worth against the
float model stays the same, while its embedding is not the integer kernels' to the last digit. Inputs beyond ±2^24 are
taken with 24 bits. The order of the operations is that of the integer bodies; of an IntLayerNorm's row the first entry
is subtracted first, so that a constant row gives the bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.plugins.function_body import FunctionBody, Number
from intaglio.plugins.integer_math import LayerNormConstants

# Sums stay below 2^31 (IntLinear's limit), so times 2^-16 they stay below 2^15, and float16 ends at 65504.
FACTOR = 2.0**-8  # of both matrices

# Weights below 2^15 and values up to 2^7, for rows of up to 2^16: sums below 2^38, so times 2^-23 below 2^15.
WEIGHT_FACTOR, VALUE_FACTOR = 2.0**-9, 2.0**-14  # the largest weight becomes 2^6, the smallest value 2^-14

TINY = 1e-20  # a variance for constant rows, whose deviations are zero


class FloatBody(FunctionBody):
    """A function body that computes in float32, and its matrix products in float16; see above for what it costs."""

    def wide(self, x: ir.Value) -> ir.Value:
        """`x` in float32, to compute with."""
        return self.cast(x, ir.DataType.FLOAT)

    def divide(self, a: ir.Value | Number, b: ir.Value | Number) -> ir.Value:
        """a / b, rounded down."""
        return self._floor(self._arithmetic("Div", a, b))

    def minimum(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """The smaller one of each pair, by one node: TensorRT-RTX's time grows with 2 to the power of the Wheres."""
        return self._arithmetic("Min", a, b)

    def maximum(self, a: ir.Value, b: ir.Value | Number) -> ir.Value:
        """The larger one of each pair."""
        return self._arithmetic("Max", a, b)

    def largest(self, x: ir.Value) -> ir.Value:
        """The largest over the last axis, which stays with length 1."""
        return self._reduce("ReduceMax", x)

    def power(self, exponent: ir.Value) -> ir.Value:
        """2^exponent for exponents in 0..62, integers of any dtype."""
        index = self.cast(exponent, ir.DataType.INT32)
        output: ir.Value = self.op("Gather", self.constant(2.0 ** np.arange(63), np.float32), index)
        return output

    def shift_right(self, x: ir.Value, power: ir.Value | Number) -> ir.Value:
        """floor(x / power)."""
        return self.divide(x, power)

    def round_shift(self, x: ir.Value, power: ir.Value | Number) -> ir.Value:
        """round(x / power), halves up."""
        return self._round(self._arithmetic("Div", x, power))

    def round_large(self, product: ir.Value, power: ir.Value | Number) -> ir.Value:
        """round(product / power), halves up."""
        return self.round_shift(product, power)

    def requantize(self, x: ir.Value, multiplier: ir.Value | Number, shift: ir.Value | Number) -> ir.Value:
        """round(x·multiplier / 2^shift); the factor is one constant where both are."""
        numerator = self.wide(multiplier) if isinstance(multiplier, ir.Value) else multiplier
        denominator = self.power(shift) if isinstance(shift, ir.Value) else 2.0**shift
        return self._round(self.multiply(x, self._arithmetic("Div", numerator, denominator)))

    def normalize(self, x: ir.Value, constants: LayerNormConstants) -> ir.Value:
        """(x - mean) / √(variance + epsilon) in Q(fraction) within 16 bits; zeros for a constant row."""
        first = self.op("Gather", x, self.constant(np.array([0])), axis=self.last_axis)
        shifted = self.subtract(x, first)  # exactly zero for a constant row, whose mean may be rounded
        deviation = self.subtract(shifted, self._reduce("ReduceMean", shifted))
        variance = self._reduce("ReduceMean", self.multiply(deviation, deviation))
        epsilon = constants.epsilon * 2.0**constants.epsilon_exponent / constants.channels**3
        unit = self._arithmetic("Div", deviation, self.op("Sqrt", self.add(variance, epsilon + TINY)))
        return self.clip(self._round(self.multiply(unit, 2.0**constants.fraction)), (-32767, 32767))

    def matmul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The product of two int8 matrices in int32, off by 2^-11 of itself."""
        product = self.op("MatMul", self._dequantize(a, FACTOR), self._dequantize(b, FACTOR))
        return self.cast(self.multiply(self.wide(product), 1 / FACTOR**2), ir.DataType.INT32)

    def weighted_sums(self, p: ir.Value, values: ir.Value) -> ir.Value:
        """The product of Q15 weights and int8 values, off by 2^-11 of the sum of magnitudes, and of itself."""
        weights = self.cast(self.multiply(p, WEIGHT_FACTOR), ir.DataType.FLOAT16)
        product = self.op("MatMul", weights, self._dequantize(values, VALUE_FACTOR))
        return self.multiply(self.wide(product), 1 / (WEIGHT_FACTOR * VALUE_FACTOR))

    def _dequantize(self, x: ir.Value, factor: float) -> Any:
        return self.op("DequantizeLinear", x, self.constant(factor, np.float16))

    def _round(self, x: ir.Value) -> ir.Value:
        """The nearest integer, halves up."""
        return self._floor(self.add(x, 0.5))

    def _floor(self, x: ir.Value) -> ir.Value:
        output: ir.Value = self.op("Floor", x)
        return output

    def _value(self, x: ir.Value | Number) -> ir.Value:
        return x if isinstance(x, ir.Value) else self.constant(x, np.float32)
