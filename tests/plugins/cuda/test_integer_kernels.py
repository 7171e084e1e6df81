"""Limits of CUDA kernels of integers: rows in registers, tiles, every shift, sums at the edge of 32 bits, masks."""

from typing import Any

import numpy as np
import operator_cases
import pytest
from kernel_cases import around_the_limits, check, kernel_case
from operator_cases import Case, int8

from intaglio.errors import EngineError
from intaglio.plugins import OPS


@pytest.mark.parametrize("length", [3, 4, 127, 128, 129, 512, 513, 1024, 1025])
@pytest.mark.parametrize("operator", ["IntSoftmax", "IntLayerNorm"])
def test_rows_around_the_registers_of_a_warp_equal_the_reference(run, monkeypatch, operator, length):
    monkeypatch.setattr(operator_cases, "width", lambda random: length)
    monkeypatch.setattr(operator_cases, "leading", lambda random: (3,))
    for seed in range(2):
        check(run, kernel_case(operator, np.random.default_rng(10 * length + seed)), seed)


@pytest.mark.parametrize("bits", [8, 16])
def test_every_shift_rounds_and_limits_as_the_reference_does(run, bits):
    x, multipliers, shifts = around_the_limits()
    check(run, Case("Requantize", (x, multipliers, shifts), {"bits": bits}))
    halves = np.minimum(multipliers, 2**30 - 1)  # the sum's limit
    for y in (x[::-1].copy(), x[::-1].astype(np.int8), x[-1].astype(np.int8)):
        check(run, Case("IntAdd", (x, y, halves, halves[::-1].copy(), shifts), {"bits": bits}))


@pytest.mark.parametrize("sign", [1, -1])
def test_every_factor_of_a_channel_takes_16_bits_to_8_as_the_reference_does(run, sign):
    _, multipliers, shifts = around_the_limits()
    random = np.random.default_rng(0)
    factors = (sign * multipliers, shifts)
    x = random.integers(-(2**15), 2**15, (6, len(shifts))).astype(np.int32)
    attributes = {"scale": 1e-3, "weight_scale": 2.0**-10, "bias_scale": 1e-3, "out_scale": 1e-2, "wide_scale": 1e-4}
    weight, bias = (random.integers(-(2**11), 2**11, len(shifts)).astype(np.int32) for _ in range(2))
    ends = (np.full(len(shifts), bound, np.int32) for bound in (-4000, 4000))  # of the 16 bits: -32768 and 32767
    for each in (bias, *ends):
        check(run, Case("IntLayerNorm", (x, weight, each, *factors, None, None, None, None), attributes, 2))
    for zero_point in (0, -128, 127):
        attributes = {"scale": 1e-4, "out_scale": 0.03, "out_zero_point": zero_point}
        check(run, Case("IntGelu", (x, *factors), attributes))


@pytest.mark.parametrize("channels", [512, 1024])
def test_layer_norm_of_rows_whose_sum_has_just_32_bits_or_more(run, channels):
    limit = 2**25  # of 32 elements of a lane
    rows = [limit, limit + 1, 2 * limit, -limit, -limit - 1, -2 * limit - 1, 2**31 - 1, -(2**31)]
    x = np.repeat(np.array(rows, np.int32)[:, None], channels, axis=1)
    x[:, 5] = x[:, 5] // 2
    attributes = {"scale": 1e-6, "weight_scale": 2.0**-10, "bias_scale": 1e-3, "out_scale": 1e-1}
    weight, bias = np.full(channels, 1000, np.int32), np.arange(channels, dtype=np.int32)
    check(run, Case("IntLayerNorm", (x, weight, bias, *(None,) * 6), attributes, 2))


# Tiles of element-wise kernels: 8 rows and 256 channels, four of each thread.
@pytest.mark.parametrize(("rows", "length"), [(1, 255), (7, 4), (8, 256), (9, 257), (17, 6)])
@pytest.mark.parametrize("operator", ["Requantize", "IntGelu", "IntAdd"])
def test_elements_around_a_tile_equal_the_reference(run, monkeypatch, operator, rows, length):
    monkeypatch.setattr(operator_cases, "width", lambda random: length)
    monkeypatch.setattr(operator_cases, "leading", lambda random: (rows,))
    check(run, kernel_case(operator, np.random.default_rng(rows + length)), rows)


@pytest.mark.parametrize(("depth", "keys"), [(32, 300), (64, 129), (80, 64), (128, 65), (7, 0)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_the_reference_at_every_head_size(run, depth, keys, masked):
    random = np.random.default_rng(depth)
    query, key, value = (int8(random, 2, length, 2 * depth) for length in (70, keys, keys))
    mask = random.random((2, 1, 70, keys)) < 0.7 if masked else None
    factors = np.array([2**30], np.int32), np.array([37], np.int32)
    check(run, Case("IntAttention", (query, key, value, *factors, mask), {"num_heads": 2, "scale": 1e-3}), depth)


def test_uniform_attention_over_4096_keys_keeps_its_sum(run):
    value = np.full((1, 4096, 32), 100, np.int8)
    factors = np.array([2**30], np.int32), np.array([38], np.int32)
    zeros = np.zeros((1, 1, 32), np.int8), np.zeros((1, 4096, 32), np.int8)
    case = Case("IntAttention", (*zeros, value, *factors, None), {"num_heads": 1, "scale": 1e-3})
    assert (run(case, 0)[0] == 100).all()
    check(run, case)


@pytest.mark.parametrize("operator", ["IntSoftmax", "IntAttention"])
def test_nonzero_mask_bytes_keep_their_entries(run, operator):
    """As in a file; `bool` has no such values, and the CPU kernels keep entries with a nonzero mask."""
    random = np.random.default_rng(0)
    mask = (random.integers(0, 3, (2, 1, 7, 70)) * 127).astype(np.uint8)
    if operator == "IntSoftmax":
        inputs: tuple[Any, ...] = (random.integers(-1000, 1000, (2, 3, 7, 70)).astype(np.int32),)
        attributes: dict[str, Any] = {"scale": 0.01, "out_scale": 1 / 127}
    else:
        inputs = tuple(int8(random, 2, length, 96) for length in (7, 70, 70))
        inputs += (np.array([2**30], np.int32), np.array([37], np.int32))
        attributes = {"num_heads": 3, "scale": 1e-3}
    got = run(Case(operator, (*inputs, mask.view(np.bool_)), attributes), 0)
    expected = OPS[operator].reference((*inputs, mask != 0), attributes)
    np.testing.assert_array_equal(got[0], expected[0])


def test_masked_softmax_of_five_axes_is_refused():
    x: Any = np.zeros((1, 1, 1, 1, 4), np.int32)
    case = Case("IntSoftmax", (x, np.ones((1, 1, 1, 1, 4), np.bool_)), {"scale": 1.0, "out_scale": 1 / 127})
    with pytest.raises(EngineError, match="5 axes, expected at most 4"):
        case.launch()


def test_attention_heads_larger_than_any_kernel_are_refused():
    wide = np.zeros((1, 1, 129), np.int8)
    factors = np.array([1], np.int32), np.array([0], np.int32)
    with pytest.raises(EngineError, match="heads of 129 channels, expected at most 128"):
        Case("IntAttention", (wide, wide, wide, *factors), {"num_heads": 1, "scale": 1.0}).launch()
