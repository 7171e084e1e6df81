"""Accuracy of the integer functions: the bounds in the documentation."""

import math

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.plugins import OPS, integer_math

INPUTS = np.arange(-32767, 32768)
SCALE = float(np.float32(4 / 32767))  # 16-bit inputs over [-4, 4]
KINDS = ("uniform", "one-hot", "long tail", "1/rank", "random")
CHANNELS = 384


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def scores(kind: str, length: int) -> np.ndarray:
    """Real logits of a softmax."""
    place = np.arange(length)
    match kind:
        case "uniform":
            return np.zeros(length)
        case "one-hot":
            return np.where(place == length // 2, 0.0, -16.0)
        case "long tail":
            return np.where(place == 0, 0.0, -math.log(max(length - 1, 1)))
        case "1/rank":
            return -np.log(place + 1.0)
        case _:
            return np.random.default_rng(length).normal(0, 2, length)


def attention_mass(kind: str, length: int) -> float:
    """The sum of the weights: the output of IntAttention if every value is 127."""
    units = np.rint(scores(kind, length) * 512).astype(np.int64)
    high = np.clip(np.rint(units / 127), -128, 127).astype(np.int64)
    key = np.stack([high, units - 127 * high], axis=-1).astype(np.int8)[None]
    query = np.array([[[127, 1]]], np.int8)
    value = np.full((1, length, 2), 127, np.int8)
    factors = [np.array([factor], np.int32) for factor in integer_math.dyadic(2.0**-integer_math.AVERAGE_FRACTION)]
    inputs = [query, key, value, *factors]
    return OPS["IntAttention"].reference(inputs, {"num_heads": 1, "scale": 1 / 512})[0].max() / 127


def test_gelu_with_16_bits_is_within_its_bounds():
    constants = integer_math.gelu_constants(SCALE, 4 / 127)
    inner = integer_math.clip(
        integer_math.requantize(INPUTS, constants.multiplier, constants.shift), integer_math.INT16
    )
    error = integer_math.gelu(inner, constants) * constants.inner_scale - gelu(INPUTS * SCALE)
    assert np.abs(error).max() <= 0.0042
    assert math.sqrt((error**2).mean()) <= 0.0024


def test_gelu_operator_adds_only_the_rounding_to_8_bits():
    step = float(np.float32(4 / 127))
    (y,) = OPS["IntGelu"].reference([INPUTS.astype(np.int32)], {"scale": SCALE, "out_scale": step})
    assert np.abs(y * step - gelu(INPUTS * SCALE)).max() <= 0.0042 + step / 2


def test_exp_with_16_bits_is_within_its_bound():
    distances = np.arange(65536)
    found = integer_math.exp(distances, integer_math.exp_constants(SCALE)) / 2**15
    assert np.abs(found - np.exp(-distances * SCALE)).max() <= 0.0022


@settings(max_examples=examples(50))
@given(st.floats(-27, 10))
def test_exp_is_within_its_bound_at_every_scale(power):
    scale = float(np.float32(2.0**power))
    distances = np.linspace(0, min(12 / scale + 1, 2**32 - 1), 2000).astype(np.int64)
    found = integer_math.exp(distances, integer_math.exp_constants(scale)) / 2**15
    assert np.abs(found - np.exp(-distances * scale)).max() <= 0.0022


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 2, 3, 127, 255, 256, 257, 1000, 4096])
def test_attention_rows_of_any_length_keep_their_sum(kind, length):
    assert abs(attention_mass(kind, length) - 1) <= 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [255, 1000, 4096])
def test_attention_error_is_within_the_rounding_to_15_bits(kind, length):
    units = np.rint(scores(kind, length) * 512).astype(np.int64)
    p = integer_math.masked_exp(units, None, integer_math.exp_constants(1 / 512))
    exact = np.exp((units - units.max()) / 512)
    misplaced = np.abs(p / p.sum() - exact / exact.sum()).sum() / 2
    assert misplaced <= length * 2.0**-16 + 2 * 0.0022


def test_softmax_with_8_bits_underflows_on_256_equal_entries():
    """Why IntAttention does not round its weights."""
    (y,) = OPS["IntSoftmax"].reference([np.zeros((1, 256), np.int32)], {"scale": 1 / 512, "out_scale": 1 / 127})
    assert not y.any()


def test_square_roots_are_exact():
    squares = [root**2 for root in range(1, 65536, 7)]
    numbers = [0, 1, 2**32 - 1, *(square + off for square in squares for off in (-1, 0, 1))]
    assert [n for n in numbers if integer_math.integer_sqrt(n) != math.isqrt(n)] == []


@pytest.mark.parametrize("kind", ["ordinary", "outliers", "tiny", "huge"])
def test_layer_norm_error_is_at_most_a_tenth_of_an_8_bit_step(kind):
    random = np.random.default_rng(1)
    shape = (16, CHANNELS)
    x = random.normal(0, 2000, shape)
    if kind == "outliers":
        x[:, 7] *= 30
    elif kind == "tiny":
        x = random.integers(0, 2, shape)
    elif kind == "huge":
        x = random.integers(-(2**31), 2**31, shape)
    x = np.rint(x).astype(np.int32)
    weight = random.integers(2**13, 2**14, CHANNELS).astype(np.int32)
    bias = random.integers(-(2**15), 2**15, CHANNELS).astype(np.int32)
    deviation = x - x.mean(axis=-1, keepdims=True)
    exact = deviation / np.sqrt((deviation**2).mean(axis=-1, keepdims=True)) * weight * 2.0**-14 + bias * 2.0**-16
    step = float(np.float32(np.abs(exact).max() / 127))
    attributes = {"scale": 1e-3, "weight_scale": 2.0**-14, "bias_scale": 2.0**-16, "out_scale": step}
    y, wide = OPS["IntLayerNorm"].reference([x, weight, bias], attributes)
    assert np.abs(wide * step / 256 - exact).max() <= 0.1 * step
    assert np.abs(y * step - exact).max() <= 0.6 * step


@pytest.mark.parametrize("value", [0, 1, -1, 12345, 2**31 - 1, -(2**31)])
def test_constant_rows_give_exactly_the_bias(value):
    bias = np.random.default_rng(0).integers(-(2**15), 2**15, CHANNELS).astype(np.int32)
    x, weight = np.full((2, CHANNELS), value, np.int32), np.full(CHANNELS, 2**14, np.int32)
    attributes = {"scale": 1e-3, "weight_scale": 2.0**-14, "bias_scale": 2.0**-14, "out_scale": 2.0**-6}
    y, wide = OPS["IntLayerNorm"].reference([x, weight, bias], attributes)
    np.testing.assert_array_equal(wide, np.broadcast_to(bias, x.shape))
    np.testing.assert_array_equal(y, np.broadcast_to(np.clip((bias + 128) >> 8, -128, 127), x.shape))
