"""Values around the thresholds between a kernel's fast and general paths, against the references, bit for bit."""

import re

import numpy as np
import pytest
from operator_cases import Case
from operator_session import operator_session

from intaglio.plugins import OPS, ort
from intaglio.plugins.kernel_check.node_model import feeds, node_model
from intaglio.plugins.ort.build import instruction_sets

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")

INT32 = np.array([-(2**31), 2**31 - 1, -1, 0, 1], np.int64)


@pytest.fixture(params=instruction_sets())
def check(request, monkeypatch):
    """Runs a case on one instruction set and compares it."""
    if request.param not in ort.supported_instruction_sets():
        pytest.skip(f"this CPU has no {request.param}")
    monkeypatch.setenv("INTAGLIO_ISA", request.param)

    def run(case: Case) -> list[np.ndarray]:
        expected = OPS[case.operator].reference(case.inputs, case.attributes)[: case.outputs]
        got = operator_session(case).run(None, feeds(case))
        for mine, want in zip(got, expected, strict=True):
            assert mine.dtype == want.dtype and mine.shape == want.shape
            np.testing.assert_array_equal(mine, want)
        return got

    return run


def int32(values) -> np.ndarray:
    return np.asarray(values).astype(np.int32)


# --- IntLayerNorm ---------------------------------------------------------------------------------------------------


def layer_norm(x, weight=None, multiplier=None, shift=None, **attributes) -> Case:
    x = int32(x)
    channels = x.shape[-1]
    random = np.random.default_rng(channels)
    weight = int32(random.integers(-(2**15), 2**15, channels) if weight is None else weight)
    bias = int32(random.integers(-(2**20), 2**20, channels))
    usual = {"scale": 1e-3, "weight_scale": 2.0**-14, "bias_scale": 1e-6, "out_scale": 0.03, "epsilon": 1e-5}
    return Case("IntLayerNorm", (x, weight, bias, multiplier, shift), {**usual, **attributes}, 2)


@pytest.mark.parametrize("channels", [2, 33, 768, 4096, 65536])
def test_layer_norm_where_deviations_outgrow_32_bits(check, channels):
    """Rows whose deviations have 28 to 33 bits, and rows of any int32, together."""
    random = np.random.default_rng(channels)
    largest = [2**bits // channels + more for bits in range(27, 32) for more in (0, 1)]
    rows = [np.where(random.random(channels) < 0.5, -value, value) for value in (*largest, 2**31 - 1)]
    rows += [np.where(np.arange(channels) == 0, value, -value) for value in (*largest, -largest[-1])]
    rows += [np.where(np.arange(channels) == 0, value, 0) for value in (-(2**31), 1)]
    check(layer_norm(np.stack(rows)))


def test_layer_norm_whose_largest_deviation_rounds_up_to_16_bits(check):
    """-32768 would exceed the positive limit of 32767 by one, and rows with few or many of it would differ."""
    pairs = np.arange(1, 33)[:, None] > np.arange(32)
    check(layer_norm((2**23 - 1) * np.concatenate([pairs, -1 * pairs], axis=1), np.full(64, 2**14)))


def test_layer_norm_of_constant_rows_gives_the_bias(check):
    y, _ = check(layer_norm(np.repeat([[0], [5], [-(2**31)], [2**31 - 1]], 100, axis=1)))
    assert (y == y[0]).all()


@pytest.mark.parametrize("largest", [2**15 - 1, 2**15, 2**15 + 1, 2**17 - 1, 2**31 - 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_layer_norm_with_weights_of_more_than_16_bits(check, largest, sign):
    x = np.random.default_rng(0).integers(-9999, 9999, (3, 70))
    check(layer_norm(x, np.resize([sign * largest, 1], 70), weight_scale=4 / largest))


@pytest.mark.parametrize("exponent", range(-4, 8))
def test_layer_norm_whose_weights_are_large_at_the_wide_scale(check, exponent):
    """The weight scale exceeds 2^-2, beyond which a normalised outlier has no bits left to shift."""
    x = np.random.default_rng(exponent + 9).integers(-9999, 9999, (3, 70)) ** 5
    check(layer_norm(x // 10**14, wide_scale=2.0**-24, weight_scale=2.0 ** (exponent - 17), bias_scale=2.0**-24))


def test_layer_norm_with_every_output_shift(check):
    x = np.random.default_rng(0).integers(-9999, 9999, (3, 63)) ** 3
    for multiplier in (2**31 - 1, -(2**31), 3, 0):
        for least in (0, 15, 18, 33):
            shift = np.maximum(np.arange(63), least)
            check(layer_norm(x // 10**6, multiplier=int32([multiplier]), shift=int32(shift)))
        check(layer_norm(x // 10**6, multiplier=int32([multiplier]), shift=int32([17])))


def test_layer_norm_with_scales_at_the_limits_of_32_bits(check):
    """Multipliers of up to 15 bits and shifts of up to 30 have their own path, with weights that need a shift."""
    x = np.random.default_rng(0).integers(-9999, 9999, (3, 63)) ** 3
    for multiplier in (2**15 - 1, 2**15, 1, 0, -1):
        for most in (30, 31):
            shift = int32(np.minimum(np.arange(63), most))
            check(layer_norm(x // 10**6, multiplier=int32([multiplier]), shift=shift, wide_scale=2.0**-12))


@pytest.mark.parametrize("exponent", range(-18, 15))
def test_layer_norm_with_weights_at_every_distance_from_the_wide_scale(check, exponent):
    """From a left shift to one beyond 32 bits; only some ratios are powers of two."""
    random = np.random.default_rng(exponent + 20)
    x, weight = random.integers(-9999, 9999, (3, 70)), random.choice([-(2**15), 2**15, 2**15 - 1, 77], 70)
    short = {"multiplier": int32([2**14 + 1]), "shift": int32([22])}
    for ratio in (0.75, 1.0, 1.0 + 2.0**-15, 1.0 + 2.0**-16):
        wide_scale = ratio * 2.0 ** (exponent - 14)
        check(layer_norm(x, weight, **short, wide_scale=wide_scale, bias_scale=wide_scale / 64))


def with_residual(case: Case, residual, factors=(2**29 + 1, 2**28 + 1, 29)) -> Case:
    inputs = (*case.inputs, residual, *(int32([factor]) for factor in factors))
    return Case(case.operator, inputs, case.attributes, case.outputs)


@pytest.mark.parametrize("dtype", [np.int8, np.int32])
@pytest.mark.parametrize("channels", [1, 15, 16, 31, 64, 333, 16384, 20000, 65536])
def test_layer_norm_with_a_residual_on_rows_of_every_length(check, channels, dtype):
    random = np.random.default_rng(channels)
    x = random.integers(-(2**15), 2**15, (3, channels))
    x[0] = 2**31 - 1  # a sum that is clipped in the complete row
    limit = 128 if dtype is np.int8 else 2**15
    check(with_residual(layer_norm(x), random.integers(-limit, limit, x.shape).astype(dtype)))


def test_layer_norm_with_a_residual_of_extremes_that_cancel_or_saturate(check):
    random = np.random.default_rng(0)
    x, residual = (int32(random.choice(INT32, (9, 70))) for _ in range(2))
    largest = 2**30 - 1
    for multipliers in [(largest, largest), (largest, -largest), (-largest, -largest), (1, -1), (0, largest)]:
        for shift in (0, 1, 14, 29, 30, 31, 32, 33, 46, 62):
            check(with_residual(layer_norm(x), residual, (*multipliers, shift)))


REFUSED = {
    "residual: shape [2, 1], expected that of x, [2, 3]": (np.zeros((2, 1), np.int8), [1], [1], [1]),
    "x_multiplier: shape [3], expected [1]": (np.zeros((2, 3), np.int8), [1, 1, 1], [1], [1]),
    "residual_multiplier: -1073741824, expected below 2^30": (np.zeros((2, 3), np.int32), [1], [-(2**30)], [1]),
    "shift: 63, expected 0 to 62": (np.zeros((2, 3), np.int32), [1], [1], [63]),
    "expected all or none": (np.zeros((2, 3), np.int32), [1], [1]),
}


@pytest.mark.parametrize("message", REFUSED)
def test_layer_norm_refuses_a_mismatched_residual(message):
    residual, *factors = REFUSED[message]
    case = layer_norm(np.ones((2, 3)))
    case = Case(case.operator, (*case.inputs, residual, *map(int32, factors)), case.attributes, 2)
    with pytest.raises(Exception, match=re.escape(message)):
        operator_session(case).run(None, feeds(case))


# --- IntSoftmax -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_scale", [2.0**-24, 1e-3, 1 / 127, 1.0])
@pytest.mark.parametrize("scale", [2.0**-27, 1e-4, 0.5, 2.0**10])
def test_softmax_at_its_smallest_and_largest_scales(check, scale, out_scale):
    random = np.random.default_rng(0)
    near = random.integers(0, max(2, int(8 / scale)), (4, 97)) + random.integers(-(2**30), 2**30, (4, 1))
    x = np.concatenate([near, random.choice(INT32, (4, 97)), np.full((1, 97), -(2**31))])
    check(Case("IntSoftmax", (int32(np.clip(x, *INT32[:2])), None), {"scale": scale, "out_scale": out_scale}))


@pytest.mark.parametrize("shape", [(5, 64), (64,), (1,), (2, 1, 5, 64), (3, 1, 1), (1, 3, 5, 1), (2, 3, 5, 64)])
def test_softmax_with_masks_of_every_shape(check, shape):
    random = np.random.default_rng(0)
    x = int32(random.integers(-20000, 20000, (2, 3, 5, 64)))
    for probability in (0.0, 0.02, 0.5, 1.0):
        mask = random.random(shape) < probability
        y = check(Case("IntSoftmax", (x, mask), {"scale": 1e-3, "out_scale": 1 / 127}))[0]
        assert not y[~np.broadcast_to(mask, y.shape)].any()


def test_softmax_refuses_mismatched_masks_and_too_long_rows():
    x = np.zeros((2, 6), np.int32)
    case = Case("IntSoftmax", (x, np.ones((2, 6), np.bool_)), {"scale": 1e-3, "out_scale": 1.0})
    proto = ir.to_proto(node_model(case))
    for value in [*proto.graph.input, *proto.graph.output]:
        for axis in value.type.tensor_type.shape.dim:
            axis.Clear()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    assert ort.register(options)
    opened = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match=r"IntSoftmax: mask: shape \[4, 6\] does not broadcast to \[2, 6\]"):
        opened.run(None, {"x": x, "mask": np.ones((4, 6), np.bool_)})
    long = np.zeros((1, 65536), np.int32)
    with pytest.raises(Exception, match="IntSoftmax: x: rows of 65536 entries, expected at most 65535"):
        opened.run(None, {"x": long, "mask": np.ones((1, 1), np.bool_)})


def test_softmax_of_the_longest_row(check):
    x = np.random.default_rng(0).integers(-3000, 3000, (1, 65535))
    check(Case("IntSoftmax", (int32(x), None), {"scale": 1e-3, "out_scale": 2.0**-24}))


# --- IntAdd ---------------------------------------------------------------------------------------------------------


def add(x, y, x_multiplier=(2**29,), y_multiplier=(2**28,), shift=(29,), bits=16) -> Case:
    return Case("IntAdd", (x, y, int32(x_multiplier), int32(y_multiplier), int32(shift)), {"bits": bits})


SHAPES = [
    ((4, 7, 40), (4, 7, 40)),
    ((4, 7, 40), (7, 40)),
    ((7, 40), (4, 7, 40)),
    ((4, 7, 40), (40,)),
    ((4, 7, 40), ()),
    ((4, 7, 40), (4, 7, 1)),
    ((4, 1, 40), (1, 7, 40)),
    ((4, 7, 1), (1, 7, 40)),
    ((2, 1, 3, 1, 40), (2, 4, 1, 5, 40)),
    ((3, 1, 5, 40), (1, 1, 5, 1)),
    ((4, 1, 1), (1, 7, 1)),
    ((1,), (1, 1)),
    ((0, 7, 40), (7, 40)),
    ((4, 7, 0), (1,)),
]


@pytest.mark.parametrize(("x_shape", "y_shape"), SHAPES, ids=str)
def test_add_broadcasts_like_numpy(check, x_shape, y_shape):
    random = np.random.default_rng(0)
    channels = np.broadcast_shapes(x_shape, y_shape)[-1]
    for x_type, y_type, bits in [
        ("int8", "int8", 8),
        ("int32", "int8", 16),
        ("int8", "int32", 8),
        ("int32", "int32", 16),
    ]:
        x, y = (
            random.integers(-128, 128, shape).astype(dtype) * np.asarray(1 if dtype == "int8" else 200, dtype)
            for shape, dtype in ((x_shape, x_type), (y_shape, y_type))
        )
        per_channel = random.integers(1, 2**30, channels)
        check(add(np.asarray(x), np.asarray(y), per_channel, shift=np.full(channels, 31), bits=bits))
        check(add(np.asarray(x), np.asarray(y), bits=bits))


def test_add_of_extremes_that_cancel_or_saturate(check):
    """Every shift, the largest scales, and sums near the limits of 64 bits."""
    random = np.random.default_rng(0)
    x, y = (int32(random.choice(INT32, (40, 63))) for _ in range(2))
    largest = 2**30 - 1
    for x_multiplier, y_multiplier in [
        (largest, largest),
        (largest, -largest),
        (-largest, -largest),
        (1, -1),
        (0, largest),
    ]:
        for bits in (8, 16):
            check(add(x, y, [x_multiplier], [y_multiplier], np.arange(63), bits))


def test_add_refuses_a_multiplier_that_could_overflow():
    x = np.ones((2, 3), np.int32)
    with pytest.raises(Exception, match="IntAdd: y_multiplier: 1073741824, expected below 2\\^30"):
        case = add(x, x, y_multiplier=[2**30])
        operator_session(case).run(None, feeds(case))


# --- IntGelu --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out_scale", [0.0293, 0.05, 1.0, 512.0])
def test_gelu_of_every_16_bit_value(check, out_scale):
    """Scales at which the first requantisation narrows, keeps, and widens the values."""
    x = int32(np.arange(-32768, 32768)).reshape(64, 1024)
    for scale in (1e-5, 1e-3, 0.3):
        for zero_point in (0, -128, 127):
            attributes = {"scale": scale, "out_scale": out_scale, "out_zero_point": zero_point}
            check(Case("IntGelu", (x, None, None), attributes))


def test_gelu_with_every_output_shift(check):
    random = np.random.default_rng(0)
    x = int32(random.integers(-(2**20), 2**20, (5, 63)))
    for multiplier in (2**31 - 1, -(2**31), 3):
        for shift in (np.arange(63), np.arange(33, 63).repeat(3)[:63], np.array([30])):
            case = (x, int32([multiplier]), int32(shift))
            check(Case("IntGelu", case, {"scale": 1e-5, "out_scale": 0.05, "out_zero_point": -111}))
