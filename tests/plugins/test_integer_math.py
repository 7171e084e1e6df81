"""The integer arithmetic against Python's unbounded integers: no input overflows a 64-bit intermediate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import GraphError
from intaglio.plugins import integer_math as im

INT32 = st.one_of(st.sampled_from([-(2**31), 2**31 - 1, -1, 0, 1]), st.integers(-(2**31), 2**31 - 1))
FACTOR = st.one_of(st.sampled_from([-(2**31) + 1, 2**31 - 1, 1, 0]), st.integers(-(2**31) + 1, 2**31 - 1))
SHIFT = st.integers(0, 62)
SCALE = st.floats(2**-20, 2**6).map(lambda value: float(np.float32(value)))


def rounded(value: int, shift: int) -> int:
    """round(value / 2^shift), halves up, unbounded."""
    return (2 * value + 2**shift) // 2 ** (shift + 1) if shift else value


def clipped(value: int, bounds: tuple[int, int]) -> int:
    return min(max(value, bounds[0]), bounds[1])


def gelu(v: int, constants: im.GeluConstants) -> int:
    distance = max(constants.saturation - abs(v), 0) * 2**constants.normalize
    square = rounded(distance * distance, 15) * 2**constants.square_shift
    h = rounded(rounded(square * square, 15) * constants.coefficient, 15)
    part = rounded(v * 4 * h, 15)
    return v - part if v >= 0 else part


def exponential(distance: int, constants: im.ExpConstants) -> int:
    short = min(distance, constants.limit) * 2**constants.left
    short = min(-(-short // 2**constants.right), 65535)
    octaves, fraction = divmod(short * constants.multiplier // 2**16, 2**im.EXP_FRACTION)
    centre = im.EXP_CENTRE - fraction * 2 ** (14 - im.EXP_FRACTION)
    mantissa = min(rounded(rounded(centre * centre, 15) * im.EXP_CURVE, 15) + im.EXP_FLOOR, 32767)
    return (2 * mantissa // 2**octaves + 1) // 2


def layer_norm(row: list[int], weight: list[int], bias: list[int], c: im.LayerNormConstants) -> list[int]:
    total = sum(row)
    deviations = [c.channels * x - total for x in row]
    largest = max(map(abs, deviations))
    shift = largest.bit_length() - 15
    short = [clipped(rounded(d, shift) if shift > 0 else d * 2**-shift, (-32767, 32767)) for d in deviations]
    exponent = c.epsilon_exponent - 2 * shift
    epsilon = c.epsilon * 2 ** min(exponent, 31) if exponent >= 0 else c.epsilon // 2 ** min(-exponent, 62)
    squares = sum(d * d for d in short) + epsilon
    even = (squares.bit_length() - 31) // 2 * 2
    factor = c.root // math.isqrt(squares * 2**-even if even < 0 else squares // 2**even) if largest else 0
    limits = (-(2**30), 2**30)
    outputs = []
    for d, w, b in zip(short, weight, bias, strict=True):
        normal = clipped(rounded(d * factor, 16 + even // 2), (-32767, 32767)) if largest else 0
        scaled = clipped(rounded(normal * w * c.weight_multiplier, c.weight_shift), limits)
        outputs.append(clipped(scaled + clipped(rounded(b * c.bias_multiplier, c.bias_shift), limits), im.INT16))
    return outputs


@given(INT32, FACTOR, SHIFT)
def test_requantisation_is_exact_at_every_extreme(x: int, multiplier: int, shift: int) -> None:
    assert int(im.requantize(x, multiplier, shift)) == rounded(x * multiplier, shift)


@settings(max_examples=examples(20))
@given(SCALE, st.floats(im.GELU_LEAST, 2**6))
def test_gelu_is_exact_for_every_16_bit_value(scale: float, out_scale: float) -> None:
    constants = im.gelu_constants(scale, out_scale)
    assert constants.saturation <= 32767 and 0 < constants.coefficient <= 17967 and constants.square_shift >= 0
    values = np.concatenate([np.arange(-32768, 32768, 997), [-32768, -1, 0, 1, 32767]])
    assert im.gelu(values, constants).tolist() == [gelu(int(v), constants) for v in values]


@given(st.floats(2**-27, 2**10), st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20))
def test_exp_is_exact_for_every_distance(scale: float, distances: list[int]) -> None:
    constants = im.exp_constants(scale)
    assert constants.multiplier <= 65535 and constants.limit << constants.left < 2**32
    found = im.exp(np.array(distances), constants).tolist()
    assert found == [exponential(distance, constants) for distance in distances]
    assert im.exp(np.array([0]), constants)[0] == 32767, "the largest of a row, on which the divisions rely"
    assert im.exp(np.array([2**32 - 1]), constants)[0] == 0


@given(st.floats(2**-24, 1), st.integers(1, im.MAX_ROW))
def test_softmax_division_is_exact_up_to_the_longest_row(out_scale: float, length: int) -> None:
    p = np.full((1, length), 32767, np.int64)
    p[0, 0] = 1
    multiplier, shift = im.softmax_constants(float(np.float32(out_scale)))
    factor = multiplier * 2**31 // max(int(p.sum()), 1)
    expected = [clipped(rounded(int(value) * factor, shift + 31), im.INT8) for value in p[0, :2]]
    assert im.softmax_rescale(p, out_scale)[0, :2].tolist() == expected


@given(st.integers(1, im.MAX_ROW), st.sampled_from([-128, 127]))
def test_weighted_averages_are_exact_for_the_longest_rows(length: int, value: int) -> None:
    total = 32767 * length
    found = int(im.weighted_average(np.array([total * value]), np.array([total]))[0])
    assert found == clipped(rounded(total * value * (2**45 // total), 37), im.INT16)
    assert abs(found - 256 * value) <= 2, "all of the mass is there"


def test_byte_planes_of_the_longest_row_stay_in_32_bits() -> None:
    assert 255 * 128 * im.MAX_ROW < 2**31


@settings(max_examples=examples(60))
@given(data=st.data())
def test_layer_norm_is_exact_for_any_int32(data: Any) -> None:
    length = data.draw(st.sampled_from([1, 2, 3, 17, 64, 100]))
    rows = data.draw(st.lists(INT32, min_size=length, max_size=length))
    weight = data.draw(st.lists(INT32, min_size=length, max_size=length))
    bias = data.draw(st.lists(INT32, min_size=length, max_size=length))
    epsilon = data.draw(st.sampled_from([0.0, 1e-12, 1e-5, 1e30]))
    constants = im.layer_norm_constants(length, data.draw(SCALE), 2.0**-31, 2.0**-20, 0.05, None, epsilon)
    found = im.layer_norm(np.array([rows]), np.array(weight), np.array(bias), constants)[0].tolist()
    assert found == layer_norm(rows, weight, bias, constants)


@pytest.mark.parametrize("length", [4096, im.MAX_CHANNELS])
@pytest.mark.parametrize("pattern", ["half", "one", "ramp"])
def test_layer_norm_is_exact_for_the_widest_rows(length: int, pattern: str) -> None:
    row = {
        "half": np.where(np.arange(length) % 2, 2**31 - 1, -(2**31)),
        "one": np.where(np.arange(length) == 7, 2**31 - 1, -(2**31)),
        "ramp": np.linspace(-(2**31), 2**31 - 1, length).astype(np.int64),
    }[pattern]
    ones = np.full(length, 2**31 - 1)
    constants = im.layer_norm_constants(length, 1e-3, 2.0**-31, 2.0**-31, 0.05)
    found = im.layer_norm(row[None], ones, ones, constants)[0].tolist()
    assert found == layer_norm(row.tolist(), ones.tolist(), ones.tolist(), constants)


@given(st.integers(0, 2**32 - 1))
def test_square_root_is_exact(n: int) -> None:
    assert im.integer_sqrt(n) == math.isqrt(n)


@given(st.floats(2.0**-80, 2.0**30))
def test_dyadic_approximations_are_close_and_in_range(real: float) -> None:
    multiplier, shift = im.dyadic(real)
    assert 0 <= multiplier < 2**31 and 0 <= shift <= 62
    assert abs(multiplier / 2**shift - real) <= max(real * 2**-31, 2.0**-63)


@pytest.mark.parametrize("real", [0.0, -1.0, math.inf, math.nan, 2.0**31])
def test_scales_without_a_dyadic_approximation_are_refused(real: float) -> None:
    with pytest.raises(GraphError, match="scale factor"):
        im.dyadic(real)
