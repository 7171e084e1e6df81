"""The integer arithmetic of the integer operators, in NumPy: the definition that all kernels follow to the bit.

`integer_math.h` beside this file says the same in C++ for one element. What both compute with are integer constants,
derived here from the real-valued scales once, when a kernel is made; nothing after that is floating point.

Notation: a real number r is held as q with r = q·scale; Qn is a fixed-point number with n fractional bits. Every
function states the range of its arguments, and the range of each intermediate is derived where it is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from intaglio.errors import GraphError

Integers = npt.NDArray[np.int64]

INT8 = (-128, 127)
INT16 = (-(2**15), 2**15 - 1)
UNIT = (-(2**14), 2**14)  # -1 to 1 in Q14, such as cosines

EXP_FRACTION = 11  # bits of an octave's fraction: t = -x / ln 2 is held in Q11
EXP_OCTAVES = 17  # beyond 2^-17 a Q15 exponential rounds to 0
MAX_ROW = 65535  # entries of a softmax row: 255·128·65535 < 2^31 keeps the sums of the byte planes in 32 bits
MAX_CHANNELS = 65536  # of a LayerNorm row: C³·2^30 and C·2^31 stay inside of 64 bits


# --- dyadic numbers: a real factor as multiplier / 2^shift (I-BERT, section "Basic Quantization Method") -------------


def dyadic(real: float, bits: int = 31) -> tuple[int, int]:
    """`real` > 0 as (multiplier, shift) with real ≈ multiplier / 2^shift, relative error at most 2^-bits.

    The multiplier lies in [2^(bits-1), 2^bits), below only where the shift would pass 62; the shift in 0..62.
    Raises `GraphError` for a factor that is not positive and finite, or of 2^bits and more.
    """
    if not (real > 0 and math.isfinite(real)):
        raise GraphError(f"scale factor {real}: expected a positive finite number. Calibrate with other data.")
    fraction, exponent = math.frexp(real)
    multiplier, shift = math.floor(fraction * 2.0**bits + 0.5), bits - exponent
    if multiplier == 2**bits:
        multiplier, shift = 2 ** (bits - 1), shift - 1
    if shift > 62:
        multiplier, shift = math.floor(real * 2.0**62 + 0.5), 62
    if shift < 0:
        raise GraphError(f"scale factor {real:g}: expected less than 2^{bits}. Give the output a larger scale.")
    return multiplier, shift


def round_shift(value: npt.ArrayLike, shift: npt.ArrayLike) -> Integers:
    """floor(value / 2^shift + 1/2), for |value| + 2^(shift-1) < 2^63 and shift in 0..62."""
    value, shift = np.asarray(value, np.int64), np.asarray(shift, np.int64)
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    rounded: Integers = (value + half) >> shift
    return rounded


def requantize(x: npt.ArrayLike, multiplier: npt.ArrayLike, shift: npt.ArrayLike) -> Integers:
    """round(x·multiplier / 2^shift), halves up: x and multiplier any int32, so the product is within ±2^62."""
    return round_shift(np.asarray(x, np.int64) * np.asarray(multiplier, np.int64), shift)


def scaled_sum(
    x: npt.ArrayLike, x_multiplier: npt.ArrayLike, y: npt.ArrayLike, y_multiplier: npt.ArrayLike, shift: npt.ArrayLike
) -> Integers:
    """round((x·x_multiplier + y·y_multiplier) / 2^shift), halves up; multipliers below 2^30, so within ±2^62."""
    left = np.asarray(x, np.int64) * np.asarray(x_multiplier, np.int64)
    return round_shift(left + np.asarray(y, np.int64) * np.asarray(y_multiplier, np.int64), shift)


def clip(value: Integers, bounds: tuple[int, int]) -> Integers:
    """`value` limited to `bounds`, both included."""
    return np.clip(value, *bounds)


def multiply_q15(a: npt.ArrayLike, b: npt.ArrayLike) -> Integers:
    """round(a·b / 2^15), halves up, of two 16-bit values: one instruction (pmulhrsw) in vector units."""
    return round_shift(np.asarray(a, np.int64) * np.asarray(b, np.int64), 15)


# --- i-GELU (I-BERT, equations 2.8 and 2.9, algorithm 2, with a fourth power) --------------------------------------

# x·h is subtracted from x, h = (1 - erf(|x|/√2)) / 2 ≈ a·(1 - |x|/b)⁴ up to b, where I-BERT has a square. One more
# product divides the largest error of x·h by 4.6; these coefficients make it least, 0.0040.
GELU_A = 0.5483
GELU_B = 3.70
GELU_LEAST = float(np.float32(0.0293))  # out_scale: a 256th of it times 2^15 reaches beyond b


@dataclass(frozen=True)
class GeluConstants:
    """The integers that i-GELU computes with.

    x·scale is first requantised to 16 bits at `inner_scale`: fine enough for the output, wide enough for the interval
    where h is not yet 0. gelu(x) = x·(1 - h) for x >= 0 and x·h below, with h = a·(1 - |x| / saturation)⁴.
    """

    inner_scale: float
    multiplier: int  # x -> 16 bits at inner_scale
    shift: int
    saturation: int  # 3.70 at inner_scale, at most 32328
    normalize: int  # left shift that brings saturation - |x| to 15 bits
    square_shift: int  # ... its square
    coefficient: int  # from the square's square in Q15 to h in Q13, at most 17967
    out_multiplier: int  # inner_scale -> out_scale
    out_shift: int


def gelu_inner_scale(out_scale: float) -> float:
    """The scale of the 16-bit values inside of i-GELU, as a float32; values at it enter without rounding."""
    return float(np.float32(float(np.float32(out_scale)) / 256))


def gelu_out_scale(scale: float) -> float:
    """The `out_scale` of an operator that ends in i-GELU, whose factors bring results to `scale` or less."""
    return max(float(np.float32(scale)), GELU_LEAST)


def gelu_constants(scale: float, out_scale: float) -> GeluConstants:
    """Constants for inputs x·scale and outputs y·out_scale. Raises `GraphError` for scales out of range."""
    scale, out_scale = float(np.float32(scale)), float(np.float32(out_scale))
    if not 0 < out_scale <= 512:
        raise GraphError(f"IntGelu: out_scale={out_scale:g}, expected in (0, 512]. Calibrate with other data.")
    if out_scale < GELU_LEAST:  # graphs with a parabola have scales and factors that are none of this curve's
        raise GraphError(
            f"IntGelu: out_scale={out_scale:g}, expected {GELU_LEAST:g} or more: the graph was made before i-GELU took "
            "a fourth power. Compress again."
        )
    inner = gelu_inner_scale(out_scale)
    saturation = math.floor(GELU_B / inner + 0.5)
    normalize = 15 - saturation.bit_length()
    largest = ((saturation << normalize) ** 2 + 2**14) >> 15
    square_shift = 15 - largest.bit_length()
    largest <<= square_shift
    coefficient = math.floor(GELU_A * 2.0**43 / (largest * largest) + 0.5)
    curve = (saturation, normalize, square_shift, coefficient)
    return GeluConstants(inner, *dyadic(scale / inner), *curve, *dyadic(inner / out_scale))


def check_zero_point(name: str, zero_point: int) -> None:
    """Raise `GraphError` unless the integer that stands for 0 is one of 8 bits."""
    if not INT8[0] <= zero_point <= INT8[1]:
        raise GraphError(f"{name}: out_zero_point={zero_point}, expected -128 to 127.")


def gelu(v: Integers, constants: GeluConstants) -> Integers:
    """gelu of 16-bit v at inner_scale, as a 16-bit value at the same scale.

    Ranges: distance and square < 2^15; h < 0.55·2^13, so 4h fits in 16 bits.
    """
    distance = np.maximum(constants.saturation - np.abs(v), 0) << constants.normalize
    square = multiply_q15(distance, distance) << constants.square_shift
    h = multiply_q15(multiply_q15(square, square), constants.coefficient)
    part = multiply_q15(v, 4 * h)
    return np.where(v >= 0, v - part, part)


# --- i-exp (I-BERT, equations 2.12 to 2.14, algorithm 3) -----------------------------------------------------------

EXP_A = 0.3585  # coefficients of exp(p) ≈ a·(p + b)² + c on (-ln 2, 0]
EXP_B = 1.353
EXP_C = 0.344

# With p = -r·ln 2 and r the fraction of an octave: a·ln²2·(b/ln 2 - r)² + c.
# r is cut off, never rounded, so it is too small by up to 8 units of Q14; 7 of them are taken from the centre.
EXP_CENTRE = math.floor(EXP_B / math.log(2) * 2**14 + 0.5) - 7  # Q14
EXP_CURVE = math.floor(EXP_A * math.log(2) ** 2 * 2**17 + 0.5)  # Q17: times a Q13 square it gives Q15
EXP_FLOOR = math.floor(EXP_C * 2**15 + 0.5)  # Q15


@dataclass(frozen=True)
class ExpConstants:
    """The integers that i-exp computes with: from the distance below the maximum to octaves in Q11."""

    limit: int  # distance at which the exponential is surely 0, at most 2^32 - 1
    left: int  # shift that brings the distance to 16 bits: left, or right
    right: int
    multiplier: int  # 16 bits: t = distance·multiplier / 2^16


def exp_constants(scale: float) -> ExpConstants:
    """Constants for inputs x·scale. Raises `GraphError` for a scale out of range."""
    scale = float(np.float32(scale))
    if not (2.0**-27 <= scale <= 2.0**10):
        raise GraphError(f"softmax scale {scale:g}: expected in [2^-27, 2^10]. Rescale the scores.")
    octaves = scale / math.log(2) * 2**EXP_FRACTION  # of one unit
    limit = math.ceil(EXP_OCTAVES * 2**EXP_FRACTION / octaves)
    left = 16 - limit.bit_length()
    multiplier = math.floor(octaves * 2.0 ** (16 - left) + 0.5)
    while multiplier > 65535:
        left += 1
        multiplier = math.floor(octaves * 2.0 ** (16 - left) + 0.5)
    return ExpConstants(limit, max(left, 0), max(-left, 0), multiplier)


def exp(distance: npt.ArrayLike, constants: ExpConstants) -> Integers:
    """exp(-distance·scale) in Q15, at most 32767, for distances in 0..2^32 - 1; off by at most 0.0022.

    Ranges: the shifted distance is cut to 16 bits, so t < 2^16; centre - r > 0; its square in Q13 < 2^15.
    """
    distance = np.minimum(np.asarray(distance, np.int64), constants.limit)
    short = np.minimum(((distance << constants.left) + ((1 << constants.right) - 1)) >> constants.right, 65535)
    t = (short * constants.multiplier) >> 16
    octaves, fraction = t >> EXP_FRACTION, t & ((1 << EXP_FRACTION) - 1)
    from_centre = EXP_CENTRE - (fraction << (14 - EXP_FRACTION))
    mantissa = multiply_q15(multiply_q15(from_centre, from_centre), EXP_CURVE) + EXP_FLOOR
    halved: Integers = (2 * np.minimum(mantissa, 32767)) >> octaves
    return (halved + 1) >> 1


def masked_exp(x: Integers, mask: npt.NDArray[np.bool_] | None, constants: ExpConstants) -> Integers:
    """exp(x - max) in Q15 over the last axis; 0 where `mask` is False, and in rows without any True.

    `mask` has the shape of `x`. Ranges: int32 x gives distances below 2^32.
    """
    if x.shape[-1] > MAX_ROW:
        raise GraphError(f"softmax row of {x.shape[-1]} entries: expected at most {MAX_ROW}. Cut the sequence.")
    if x.shape[-1] == 0:
        return x
    if mask is None:
        return exp(x.max(axis=-1, keepdims=True) - x, constants)
    lowest = np.where(mask, x, np.int64(-(2**31)))
    top = lowest.max(axis=-1, keepdims=True)
    return np.where(mask, exp(np.where(mask, top - x, 0), constants), 0)


# --- i-softmax's division ------------------------------------------------------------------------------------------


def softmax_rescale(p: Integers, out_scale: float) -> Integers:
    """p / sum(p) at `out_scale`, limited to 8 bits, over the last axis; p in Q15. A row of zeros stays zeros.

    Ranges: sum < 2^31; factor < 2^31·2^31 / sum, and p <= sum, so p·factor < 2^62.
    """
    multiplier, shift = softmax_constants(out_scale)
    total = p.sum(axis=-1, keepdims=True, dtype=np.int64)
    factor = (np.int64(multiplier) << 31) // np.maximum(total, 1)
    return clip(round_shift(p * factor, shift + 31), INT8)


def softmax_constants(out_scale: float) -> tuple[int, int]:
    """1 / out_scale as a dyadic number. Raises `GraphError` for a scale out of range."""
    out_scale = float(np.float32(out_scale))
    if not 2.0**-24 <= out_scale <= 1:
        raise GraphError(f"IntSoftmax: out_scale={out_scale:g}, expected in [2^-24, 1], usually 1/127.")
    return dyadic(1.0 / out_scale)


AVERAGE_FRACTION = 8  # bits of fraction that a weighted average of 8-bit values keeps
RECIPROCAL = 45  # 2^45 / sum fits in 31 bits, as the largest of a row's exponentials is 32767


def weighted_average(sums: Integers, total: Integers) -> Integers:
    """sums / total in Q8: sums of Q15 weight × int8 value, total the sum of those weights. Zero for total = 0.

    Ranges: |sums| <= 128·total, so |sums·factor| <= 2^52 and the result is a 16-bit value.
    """
    factor = (np.int64(1) << RECIPROCAL) // np.maximum(total, 1)
    return clip(round_shift(sums * factor, RECIPROCAL - AVERAGE_FRACTION), INT16)


# --- i-LayerNorm (I-BERT, equation 2.15, algorithm 4) --------------------------------------------------------------


def integer_sqrt(n: int) -> int:
    """floor(√n) for n in 0..2^32 - 1 by Newton's method from above (I-BERT, algorithm 4)."""
    if n == 0:
        return 0
    x = 1 << ((n.bit_length() + 1) // 2)
    while (following := (x + n // x) >> 1) < x:
        x = following
    return x


@dataclass(frozen=True)
class LayerNormConstants:
    """The integers that i-LayerNorm computes with, for rows of `channels`."""

    channels: int
    fraction: int  # bits of fraction of the normalised values: the most that keep √C within 16 bits
    root: int  # √C in Q(16 + fraction), at most 2^31
    epsilon: int  # mantissa and exponent of epsilon·C³/scale²: what epsilon adds to the sum of squares
    epsilon_exponent: int
    weight_multiplier: int  # 16 bits: weight·normalised -> wide_scale
    weight_shift: int
    bias_multiplier: int
    bias_shift: int
    out_multiplier: int  # wide_scale -> out_scale
    out_shift: int


def layer_norm_constants(
    channels: int,
    scale: float,
    weight_scale: float,
    bias_scale: float,
    out_scale: float,
    wide_scale: float | None = None,
    epsilon: float = 0.0,
) -> LayerNormConstants:
    """Constants for rows of `channels` values x·scale. Raises `GraphError` for arguments out of range."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise GraphError(f"IntLayerNorm: {channels} channels, expected 1 to {MAX_CHANNELS}. Leave this layer in float.")
    scale, weight_scale, bias_scale, out_scale, epsilon = (
        float(np.float32(value)) for value in (scale, weight_scale, bias_scale, out_scale, epsilon)
    )
    wide = float(np.float32(wide_scale)) if wide_scale else out_scale / 256
    for name, value in (("scale", scale), ("out_scale", out_scale), ("wide_scale", wide)):
        if not 0 < value < math.inf:
            raise GraphError(f"IntLayerNorm: {name}={value:g}, expected a positive number. Calibrate with other data.")
    if not 0 <= epsilon < math.inf:
        raise GraphError(f"IntLayerNorm: epsilon={epsilon:g}, expected 0 or a positive number. Fix the model.")
    half_bits = ((channels - 1).bit_length() + 1) // 2
    fraction = 15 - half_bits
    root = math.floor(math.sqrt(channels) * 2.0 ** (31 - half_bits) + 0.5)
    spread = epsilon * float(channels) ** 3 / (scale * scale)
    mantissa, exponent = math.frexp(spread)
    return LayerNormConstants(
        channels,
        fraction,
        root,
        math.floor(mantissa * 2.0**31),
        exponent - 31,
        *dyadic(weight_scale * 2.0**-fraction / wide, bits=16),
        *dyadic(bias_scale / wide),
        *dyadic(wide / out_scale),
    )


def normalize(x: Integers, constants: LayerNormConstants) -> Integers:
    """(x - mean) / √(variance + epsilon) over the last axis, in Q(fraction) within 16 bits; x any int32.

    1. deviation = C·x - sum: exact, below 2^48.
    2. It is shifted so that the row's largest has 15 bits (a block floating point number); all zero stays zero.
    3. squares = sum of its squares, in [2^28, 2^46], plus epsilon's share (at most 2^62): no overflow.
    4. √squares with 16 significant bits by `integer_sqrt` of squares shifted, by an even number, into [2^30, 2^32).
    5. deviation·(√C / √squares), whose factor has 15 or 16 bits; by Cauchy and Schwarz at most √C.
    """
    wide = np.asarray(x, np.int64)
    deviation = constants.channels * wide - wide.sum(axis=-1, keepdims=True)
    largest = np.abs(deviation).max(axis=-1, keepdims=True)
    shift = _bit_length(largest) - 15
    short = np.where(shift > 0, round_shift(deviation, np.maximum(shift, 0)), deviation << np.maximum(-shift, 0))
    short = np.clip(short, -32767, 32767)
    squares = (short * short).sum(axis=-1, keepdims=True) + epsilon_share(shift, constants)
    even = (_bit_length(squares) - 31) & ~1
    radicand = np.where(even > 0, squares >> np.maximum(even, 0), squares << np.maximum(-even, 0))
    deviating = largest > 0
    root = np.maximum(np.vectorize(integer_sqrt, otypes=[np.int64])(np.where(deviating, radicand, 1)), 1)
    factor = np.where(deviating, constants.root // root, 0)
    halved = (short * factor) >> np.where(deviating, 15 + even // 2, 0)
    limited: Integers = np.clip((halved + 1) >> 1, -32767, 32767)
    return limited


def layer_norm(x: Integers, weight: Integers, bias: Integers, constants: LayerNormConstants) -> Integers:
    """Normalised, weighted and biased 16-bit values at wide_scale.

    Ranges: |normalised·weight| < 2^46, times 16 bits < 2^62; both summands are limited to ±2^30 before the sum.
    """
    limits = (-(2**30), 2**30)
    weighted = normalize(x, constants) * np.asarray(weight, np.int64)
    scaled = clip(requantize(weighted, constants.weight_multiplier, constants.weight_shift), limits)
    shifted = clip(requantize(bias, constants.bias_multiplier, constants.bias_shift), limits)
    return clip(scaled + shifted, INT16)


def epsilon_share(shift: Integers, constants: LayerNormConstants) -> Integers:
    """Epsilon's share of the sum of squares of deviations that were shifted by `shift`: at most 2^62."""
    exponent = constants.epsilon_exponent - 2 * shift
    left = np.int64(constants.epsilon) << np.clip(exponent, 0, 31)
    return np.where(exponent >= 0, left, np.int64(constants.epsilon) >> np.clip(-exponent, 0, 62))


def _bit_length(value: Integers) -> Integers:
    """Number of bits of each value >= 0; 0 for 0. (frexp is exact below 2^53; above, the upper half decides.)"""
    high = value >> 31
    return np.where(high > 0, np.frexp(high.astype(np.float64))[1] + 31, np.frexp(value.astype(np.float64))[1])
