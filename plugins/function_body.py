"""Write the body of an operator in standard ONNX operators, bit-identical to the operator.

The functions below are `integer_math.py` in ONNX. Integers travel in float64, exact below 2^53 (see `body_arithmetic`);
a function of up to 16 bits is a table, made by `integer_math` itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.plugins import bit_packing, integer_math
from intaglio.plugins.body_arithmetic import FACTORS, MAGNITUDE, UNSIGNED, BodyArithmetic, Number
from intaglio.plugins.integer_math import ExpConstants, GeluConstants, LayerNormConstants

EXACT = 2.0**53  # float64 holds every integer up to here
SPLIT = 16  # bits of the lower part of a factor
POWERS = 2 ** np.arange(63, dtype=np.int64)
LONG = ir.DataType.INT64
DEVIATION_BITS = 49  # of channels·x - sum, at most 2^48

Term = tuple[ir.Value, ir.Value | Number]  # x and its multiplier


class FunctionBody(BodyArithmetic):
    """A body whose integers are the operator's."""

    def __init__(self, rank: int | None = None) -> None:
        super().__init__(rank)
        self._unsigned: dict[ir.Value, ir.Value] = {}

    def bits(self, x: ir.Value, bits: int) -> ir.Value:
        """Values limited to 8 bits as int8, to 16 or 32 as int32."""
        if bits != 8 or x.dtype == ir.DataType.INT8:
            return self.cast(x, ir.DataType.INT8 if bits == 8 else ir.DataType.INT32)
        narrow = self.cast(x, ir.DataType.INT8)
        narrow.meta[UNSIGNED] = self.cast(self.add(x, 128), ir.DataType.UINT8)
        return narrow

    def power(self, exponent: ir.Value | Number) -> ir.Value:
        """2^exponent for exponents in 0..62."""
        if not isinstance(exponent, ir.Value):
            return self.value(2.0 ** np.asarray(exponent, np.float64))
        index = self.cast(exponent, ir.DataType.INT32)
        return self.op("Gather", self.constant(POWERS, self.dtype.numpy().type), index)

    def round_shift(self, x: ir.Value, power: int) -> ir.Value:
        """round(x / power), halves up."""
        return self.round(self.multiply(x, 1 / power))

    def requantize(self, x: ir.Value, multiplier: ir.Value | Number, shift: ir.Value | Number) -> ir.Value:
        """round(x·multiplier / 2^shift), halves up, for results that are limited to 2^31 or less afterwards."""
        return self.floor(self._rescaled([(x, multiplier)], shift, 0))

    def rescale(
        self,
        terms: Sequence[Term],
        shift: ir.Value | Number,
        bits: int,
        bias: ir.Value | None = None,
        zero_point: int = 0,
    ) -> ir.Value:
        """round((Σ x·multiplier + bias·multiplier) / 2^shift), halves up, limited to 8 bits as int8, to 16 as int32.

        The bias has the multiplier of the first term; a zero point is added before the limits. Casts of non-negative
        values round down, so no Floor is needed.
        """
        if bias is not None:
            terms = [*terms, (bias, terms[0][1])]
        offset = 2 ** (bits - 1)
        whole = self._rescaled(terms, shift, offset + zero_point)
        limited = self.op("Clip", whole, self.value(0, whole), self.value(2**bits - 0.5, whole))
        unsigned = self.cast(limited, ir.DataType.UINT8 if bits == 8 else ir.DataType.INT32)
        signed = self.subtract(self.cast(unsigned, ir.DataType.INT32), offset)
        output = self.cast(signed, ir.DataType.INT8) if bits == 8 else signed
        output.meta.update({UNSIGNED: unsigned, MAGNITUDE: offset})
        return output

    def _rescaled(self, terms: Sequence[Term], shift: ir.Value | Number, offset: int) -> ir.Value:
        """A value that rounds down to Σ x·multiplier / 2^shift + 1/2 + offset, if that is 2^31 or less.

        To divide by 2^shift beforehand is exact. Where the sum may then need more than 53 bits, every multiplier is
        high·2^16 + low, and with e = min(shift, 16)

            round(Σ x·m / 2^s) = floor((Σ x·high·2^(16-e) + floor(Σ x·low / 2^e + h)) / 2^(s-e) + k)

        with the half as h where s <= 16, as k beyond, and none for s = 0. Each product is below 2^52 for an x of 32
        bits and a multiplier of 32, or of 16 and 48; what is rounded beyond 2^53 is limited all the same.
        """
        values = [self.wide(x) for x, _ in terms]
        factors = [self.wide(self.value(multiplier)) for _, multiplier in terms]
        power = self.power(shift)
        if self._exact(values, factors, power, offset + 0.5):
            scaled = [self._over(factor, power) for factor in factors]
            return self._sum_of_products(values, scaled, self.value(offset + 0.5))
        high = [self.floor(self.multiply(factor, 2.0**-SPLIT)) for factor in factors]
        low = [self.subtract(whole, self.multiply(part, 2.0**SPLIT)) for whole, part in zip(factors, high, strict=True)]
        low_power = self.minimum(power, 2.0**SPLIT)
        half = self.choose(self.at_least(power, 2.0), 0.5, self.value(0.0))
        outer = self.choose(self.at_least(power, 2.0 ** (SPLIT + 1)), half, 0.0)
        lower = [self._over(part, low_power) for part in low]
        upper = [self._over(self.multiply(part, 2.0**SPLIT), power) for part in high]
        carried = self.floor(self._sum_of_products(values, lower, self.subtract(half, outer)))
        carried = self.multiply(carried, self._over(low_power, power))
        return self.add(self.floor(self.add(self._sum_of_products(values, upper, outer), carried)), offset)

    def _exact(self, values: Sequence[ir.Value], factors: Sequence[ir.Value], power: ir.Value, rest: float) -> bool:
        """Whether Σ x·factor + rest·power is known to fit in 53 bits."""
        arrays = [self.known(value) for value in (*factors, power)]
        known = [array for array in arrays if array is not None]
        if len(known) < len(arrays):
            return False
        products = [self.magnitude(x) * np.abs(factor) for x, factor in zip(values, known, strict=False)]
        return bool((sum(products, known[-1] * rest) < EXACT).all())

    def _sum_of_products(self, values: Sequence[ir.Value], factors: Sequence[ir.Value], rest: ir.Value) -> ir.Value:
        """Σ x·factor + rest, with constant parts first."""
        products = [self.multiply(x, factor) for x, factor in zip(values, factors, strict=True)]
        for product in sorted(products, key=lambda product: self.known(product) is None):
            rest = self.add(product, rest)
        return rest

    def _over(self, x: ir.Value, power: ir.Value) -> ir.Value:
        return self.arithmetic("Div", x, power)

    def gelu(self, v: ir.Value, constants: GeluConstants) -> ir.Value:
        """`integer_math.gelu` of what `rescale` limited to 16 bits."""
        table = integer_math.gelu(np.arange(integer_math.INT16[0], integer_math.INT16[1] + 1), constants)
        return self.look_up(table.astype(np.int16), v.meta[UNSIGNED])

    def masked_exp(self, x: ir.Value, mask: ir.Value | None, constants: ExpConstants) -> ir.Value:
        """`integer_math.masked_exp`, as int16; the mask broadcasts to x.

        The table ends with the first distance whose exponential is 0. A masked entry is further away than that, also
        in a row without any other. Scores that leave room for it in int32 stay there.
        """
        last = min(-(-constants.limit >> constants.right), 65535)
        table = integer_math.exp(np.arange(last + 1) << constants.right, constants).astype(np.int16)
        small = max(self.magnitude(x), constants.limit) < 2**29
        masked = -(2**30) if small else -(2**34)
        x = x if small else self.wide(x)
        kept = x if mask is None else self.choose(mask, x, masked)
        distance = self.subtract(self.maximum(self.largest(kept), masked // 2), kept)
        if constants.right:
            distance = self.divide(self.add(distance, 2**constants.right - 1), 2**constants.right)
        return self.look_up(table, self.minimum(distance, last))

    def softmax_rescale(self, p: ir.Value, out_scale: float) -> ir.Value:
        """`integer_math.softmax_rescale`: with the factor as high·2^31 + low, both products are below 2^47."""
        multiplier, shift = integer_math.softmax_constants(out_scale)
        wide = self.wide(p)
        total = self.cast(self.maximum(self.sum(wide), 1), LONG)
        factor = self.divide(multiplier << 31, total)
        high = self.divide(factor, 2**31)
        low = self.subtract(factor, self.multiply(high, 2**31))
        carried = self.floor(self.multiply(self.multiply(wide, self.wide(low)), 2.0**-31))
        y = self.round_shift(self.add(self.multiply(wide, self.wide(high)), carried), 2**shift)
        return self.clip(y, integer_math.INT8)

    def weighted_average(self, p: ir.Value, values: ir.Value) -> ir.Value:
        """`integer_math.weighted_average` of `values`, as `operand` gives them, with the weights p."""
        total = self.maximum(self.sum(self.wide(p)), 1)
        factor = self.divide(2.0**integer_math.RECIPROCAL, total)
        shift = integer_math.RECIPROCAL - integer_math.AVERAGE_FRACTION
        average = self.round_shift(self.multiply(self.weighted_sums(p, values), factor), 2**shift)
        return self.clip(average, integer_math.INT16)

    def weighted_sums(self, p: ir.Value, values: ir.Value) -> ir.Value:
        """The product of Q15 weights in int16 and int8 values: byte by byte of the weights."""
        high = self.cast(self.multiply(self.wide(p), 1 / 256), ir.DataType.UINT8)  # a cast cuts the fraction off
        low = self.cast(p, ir.DataType.UINT8)  # and bits beyond the eighth
        zero_point = self.constant(128, np.uint8)
        planes = [self.wide(self.op("MatMulInteger", plane, values, None, zero_point)) for plane in (high, low)]
        return self.add(self.multiply(planes[0], 256), planes[1])

    def bit_length(self, x: ir.Value, most: int) -> ir.Value:
        """Number of bits, up to `most`, of values >= 0 whose last axis has length 1; the shape is kept; int64."""
        return self.sum(self.cast(self.at_least(x, POWERS[:most]), LONG))

    def integer_sqrt(self, n: ir.Value) -> ir.Value:
        """floor(√n) for n below 2^32: √(n + 1/2) is further than 2^-18 from an integer, and float64 off by far less."""
        return self.floor(self.op("Sqrt", self.add(n, 0.5)))

    def normalize(self, x: ir.Value, constants: LayerNormConstants) -> ir.Value:
        """`integer_math.normalize`; values of which a row has one are in int64, and in tables by number of bits."""
        wide = self.wide(x)
        deviation = self.subtract(self.multiply(wide, constants.channels), self.sum(wide))
        bits = self.bit_length(self.largest(self.op("Abs", deviation)), DEVIATION_BITS)
        lengths = np.arange(DEVIATION_BITS + 1)
        short = self.round(self.multiply(deviation, self._pick(2.0 ** (15 - lengths), bits)))
        short = self.clip(short, (-32767, 32767))
        squares = self.cast(self.sum(self.multiply(short, short)), LONG)
        if constants.epsilon:
            squares = self.add(squares, self._pick(integer_math.epsilon_share(lengths - 15, constants), bits))
        length = self.bit_length(squares, len(POWERS))
        even = (np.arange(len(POWERS) + 1) - 31) & ~1
        up, down = (self._pick(POWERS[np.maximum(each, 0)], length) for each in (-even, even))
        # A row without deviation has no root; any number works, because zeros multiply it.
        radicand = self.maximum(self.wide(self.divide(self.multiply(squares, up), down)), 2**30)
        factor = self.divide(constants.root, self.integer_sqrt(radicand))
        unit = self.multiply(factor, self._pick(2.0 ** -(16 + even // 2), length))
        return self.clip(self.round(self.multiply(short, unit)), (-32767, 32767))

    def _pick(self, table: npt.NDArray[np.generic], index: ir.Value) -> ir.Value:
        """An entry of a small table for each row."""
        return self.op("Gather", self.constant(table, table.dtype.type), index)

    def layer_norm(self, x: ir.Value, weight: ir.Value, bias: ir.Value, constants: LayerNormConstants) -> ir.Value:
        """`integer_math.layer_norm`."""
        limits = (-(2**30), 2**30)
        multiplier = self.multiply(self.wide(weight), constants.weight_multiplier)
        weighted = self.requantize(self.normalize(x, constants), multiplier, constants.weight_shift)
        shifted = self.requantize(self.wide(bias), constants.bias_multiplier, constants.bias_shift)
        return self.clip(self.add(self.clip(weighted, limits), self.clip(shifted, limits)), integer_math.INT16)

    def operand(self, x: ir.Value) -> ir.Value:
        """The form of an int8 x that `matmul` expects: x + 128 in uint8.

        In ONNX Runtime (1.31) the product of two uint8 is exact on every processor and fast. That of two int8 has no
        vector instructions on x86, and uint8 times int8 adds pairs in 16 bits without VNNI, which saturates.
        """
        if UNSIGNED in x.meta:
            self._unsigned[x] = x.meta[UNSIGNED]
        if x not in self._unsigned:
            array = self.fixed(x)
            if array is not None:
                unsigned = self.constant(array.astype(np.int16) + 128, np.uint8)
            else:
                unsigned = self.cast(self.add(self.cast(x, ir.DataType.INT32), 128), ir.DataType.UINT8)
            self._unsigned[x] = unsigned
        self._unsigned[x].shape = x.shape
        return self._unsigned[x]

    def matmul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The product of two int8 matrices, as `operand` gives them, in int32."""
        zero_point = self.constant(128, np.uint8)
        output = self.op("MatMulInteger", a, b, zero_point, zero_point)
        weight, depth = self.known(b), None if a.shape is None else a.shape[-1]
        if weight is not None:
            output.meta[MAGNITUDE] = 128 * np.abs(weight.astype(np.int64) - 128).sum(-2).max(initial=0)
        elif isinstance(depth, int):
            output.meta[MAGNITUDE] = 2**14 * depth
        return output

    def product(self, x: ir.Value, weight: ir.Value) -> ir.Value:
        """x [..., K] times the transpose of a weight [N, K], both floating point, in the dtype of x."""
        return self.float_matmul(x, self.op("Transpose", weight, perm=[1, 0]))

    def float_matmul(self, x: ir.Value, weight: ir.Value) -> ir.Value:
        """x [..., K] times a weight [K, N], both floating point, in the dtype of x.

        If the weight is computed from constants only, ONNX Runtime computes it once when it opens the model; a CastLike
        in between would prevent that.
        """
        same = weight if weight.dtype == x.dtype else self.cast_like(weight, x)
        output = self.op("MatMul", x, same)
        output.meta[FACTORS] = (x, same)
        return output

    def other_factor(self, product: ir.Value, x: ir.Value) -> ir.Value | None:
        """The weight [K, N] if `product` is x times a weight, from an operator replaced before; else None."""
        left, right = product.meta.get(FACTORS, (None, None))
        return right if left is x else None

    def cast_like(self, x: ir.Value, like: ir.Value) -> ir.Value:
        """`x` in the dtype of `like`."""
        if like.dtype is not None:
            return self.cast(x, like.dtype)
        return self.op("CastLike", x, like)

    def numbers(self, packed: ir.Value, bits: int) -> ir.Value | None:
        """The numbers packed by `bit_packing`, constant [K, N] in `small_integer`; None if not constant."""
        words = self.fixed(packed)
        if words is None:
            return None
        unpacked = bit_packing.unpack(words.view(np.int32), bits)
        return self.stored(unpacked.T.astype(self.small_integer(bits)))

    @staticmethod
    def small_integer(bits: int) -> type[np.generic]:
        """The smallest unsigned dtype of opset 21 for this many bits: uint4 or uint8."""
        return (ir.DataType.UINT8 if bits > 4 else ir.DataType.UINT4).numpy().type

    def split_heads(self, x: ir.Value, num_heads: int, order: Sequence[int]) -> ir.Value:
        """[batch, length, heads·depth] as [batch, length, heads, depth], its axes then put in `order`."""
        width = None if x.shape is None else x.shape[2]
        if isinstance(width, int):
            shape = self.constant(np.array([0, 0, num_heads, width // num_heads]))
        else:
            depth = self.op("Div", self.op("Shape", x, start=2, end=3), self.constant(num_heads))
            shape = self.op("Concat", self.constant(np.array([0, 0, num_heads])), depth, axis=0)
        output = self.op("Transpose", self.op("Reshape", x, shape), perm=list(order))
        if x.shape is not None and isinstance(width, int):
            axes = [x.shape[0], x.shape[1], num_heads, width // num_heads]
            output.shape = ir.Shape([axes[axis] for axis in order])
        return output

    def split_channels(self, x: ir.Value, parts: int) -> tuple[ir.Value, ...]:
        """Equal parts of the last axis."""
        outputs = self.split(x, parts, axis=-1)
        if x.shape is not None and isinstance(width := x.shape[-1], int):
            for output in outputs:
                output.shape = ir.Shape([*x.shape[:-1], width // parts])
        return outputs
