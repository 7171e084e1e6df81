"""The functions of `intaglio.plugins.integer_math` on torch tensors, to the bit, fast enough to train with.

Tensors are int64 unless stated otherwise. The two polynomials are not written down again: their arguments have 16 bits,
so they are tables of 65536 entries that the definition itself fills. Functions whose names end in `_` work in place.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from intaglio.plugins import integer_math
from intaglio.plugins.integer_math import ExpConstants, GeluConstants, LayerNormConstants

EXACT_ROWS = 1 << 10  # products of int8 that float32 adds up exactly: 2^14·2^10 = 2^24


def product(a: Tensor, b: Tensor) -> Tensor:
    """a·b over the last two axes, exactly, for float32 tensors that hold int8 values; differentiable.

    float32 where the sum is sure to fit in its 24 bits, else float64 of parts that do.
    """
    rows = a.shape[-1]
    if rows <= EXACT_ROWS:
        return a @ b
    parts = -(-rows // EXACT_ROWS)
    terms = zip(a.tensor_split(parts, -1), b.tensor_split(parts, -2), strict=True)
    return torch.stack([(left @ right).double() for left, right in terms]).sum(0)


def round_shift_(value: Tensor, shift: Tensor | int) -> Tensor:
    """floor(value / 2^shift + 1/2)."""
    shift = torch.as_tensor(shift)
    half = torch.where(shift > 0, torch.ones_like(shift) << (shift - 1).clamp_min(0), 0)
    return value.add_(half).bitwise_right_shift_(shift)


def requantize(x: Tensor, multiplier: Tensor | int, shift: Tensor | int, bounds: tuple[int, int]) -> Tensor:
    """round(x·multiplier / 2^shift), halves up, limited to `bounds`."""
    return round_shift_(x * multiplier, shift).clamp_(*bounds)


@lru_cache(maxsize=64)
def _gelu_table(constants: GeluConstants) -> Tensor:
    return torch.from_numpy(integer_math.gelu(np.arange(-(2**15), 2**15), constants))


def gelu(v: Tensor, constants: GeluConstants) -> Tensor:
    """gelu of 16-bit v at inner_scale, as a 16-bit value at the same scale."""
    return _gelu_table(constants)[v + 2**15]


@lru_cache(maxsize=1)
def _exp_table() -> Tensor:
    """Of t, octaves in Q11: here the constants that turn a distance into t are the identity."""
    return torch.from_numpy(integer_math.exp(np.arange(2**16), ExpConstants(2**16 - 1, 0, 0, 2**16)))


def exp_(distance: Tensor, constants: ExpConstants) -> Tensor:
    """exp(-distance·scale) in Q15; overwrites `distance` (0..2^32 - 1)."""
    distance.clamp_(max=constants.limit).bitwise_left_shift_(constants.left)
    distance.add_((1 << constants.right) - 1).bitwise_right_shift_(constants.right).clamp_(max=65535)
    return _exp_table()[distance.mul_(constants.multiplier).bitwise_right_shift_(16)]


def masked_exp(x: Tensor, mask: Tensor | None, constants: ExpConstants) -> Tensor:
    """exp(x - max) in Q15 over the last axis; 0 where `mask` (bool, broadcastable) is False."""
    if x.shape[-1] == 0:
        return x
    if mask is None:
        return exp_(x.amax(-1, keepdim=True) - x, constants)
    top = x.masked_fill(~mask, -(2**31)).amax(-1, keepdim=True)
    return exp_((top - x).masked_fill_(~mask, 0), constants).masked_fill_(~mask, 0)


def softmax_rescale(p: Tensor, out_scale: float) -> Tensor:
    """p / sum(p) at `out_scale`, limited to 8 bits, over the last axis; p in Q15."""
    multiplier, shift = integer_math.softmax_constants(out_scale)
    factor = (multiplier << 31) // p.sum(-1, keepdim=True).clamp_min(1)
    return round_shift_(p * factor, shift + 31).clamp_(*integer_math.INT8)


def weighted_average(sums: Tensor, total: Tensor) -> Tensor:
    """sums / total in Q8: sums of Q15 weight × int8 value, total the sum of those weights."""
    factor = (1 << integer_math.RECIPROCAL) // total.clamp_min(1)
    shift = integer_math.RECIPROCAL - integer_math.AVERAGE_FRACTION
    return round_shift_(sums * factor, shift).clamp_(*integer_math.INT16)


def normalize(x: Tensor, constants: LayerNormConstants) -> Tensor:
    """(x - mean) / √(variance + epsilon) over the last axis, in Q(fraction) within 16 bits."""
    deviation = constants.channels * x - x.sum(-1, keepdim=True)
    largest = deviation.abs().amax(-1, keepdim=True)
    shift = _bit_length(largest) - 15
    left, right = (-shift).clamp_min(0), shift.clamp_min(0)
    short = round_shift_(deviation.bitwise_left_shift_(left), right).clamp_(-32767, 32767)
    squares = (short * short).sum(-1, keepdim=True) + _epsilon(shift, constants)
    even = (_bit_length(squares) - 31) & ~1
    radicand = (squares << (-even).clamp_min(0)) >> even.clamp_min(0)
    deviating = largest > 0
    root = radicand.double().sqrt_().floor_().long().clamp_min_(1)  # exact: the radicand has 32 bits
    factor = torch.where(deviating, constants.root // root, 0)
    halved = short.mul_(factor).bitwise_right_shift_(torch.where(deviating, 15 + even // 2, 0))
    return halved.add_(1).bitwise_right_shift_(1).clamp_(-32767, 32767)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, constants: LayerNormConstants) -> Tensor:
    """Normalised, weighted and biased 16-bit values at wide_scale."""
    limits = (-(2**30), 2**30)
    weighted = normalize(x, constants).mul_(weight)
    scaled = requantize(weighted, constants.weight_multiplier, constants.weight_shift, limits)
    return scaled.add_(requantize(bias, constants.bias_multiplier, constants.bias_shift, limits)).clamp_(
        *integer_math.INT16
    )


def _epsilon(shift: Tensor, constants: LayerNormConstants) -> Tensor:
    """Epsilon's share of the sum of squares of deviations that were shifted by `shift`."""
    exponent = constants.epsilon_exponent - 2 * shift
    mantissa = torch.full_like(exponent, constants.epsilon)
    return torch.where(exponent >= 0, mantissa << exponent.clamp(0, 31), mantissa >> (-exponent).clamp(0, 62))


def _bit_length(value: Tensor) -> Tensor:
    """Number of bits of each value >= 0; 0 for 0. (Beyond 2^53 float64 rounds, so the upper half decides there.)"""
    high = value >> 31
    return torch.where(high > 0, torch.frexp(high.double()).exponent + 31, torch.frexp(value.double()).exponent).long()
