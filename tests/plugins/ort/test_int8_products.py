"""Integer matrix products beyond random small cases: full tiles, many blocks, extremes, scales."""

import numpy as np
import pytest
from operator_cases import Case
from operator_session import operator_session

from intaglio.plugins import OPS
from intaglio.plugins.kernel_check.node_model import feeds

onnxruntime = pytest.importorskip("onnxruntime")
ir = pytest.importorskip("onnx_ir")
pytestmark = pytest.mark.usefixtures("instruction_set")


def run(case, constants=True):
    session = operator_session(case, constants)
    return session.run(None, feeds(case, constants))[0]


def check(case, constants=True):
    np.testing.assert_array_equal(run(case, constants), OPS[case.operator].reference(case.inputs, case.attributes)[0])


def int8(random, *shape):
    return random.integers(-128, 128, shape).astype(np.int8)


def linear(x, weight, bits=32, activation="", factors=()):
    attributes = {"bits": bits, "activation": activation, "out_scale": 0.03}
    bias = np.arange(weight.shape[1], dtype=np.int32) * 1001
    return Case("IntLinear", (x, weight, bias, *factors), attributes)


@pytest.mark.parametrize("rows", [*range(30), 127, 128])
def test_every_tile_height_computes_its_rows(rows):
    random = np.random.default_rng(rows)
    check(linear(int8(random, rows, 70), int8(random, 70, 33)))


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65])
def test_columns_beyond_the_last_panel_are_not_written(columns):
    random = np.random.default_rng(columns)
    factors = (np.full(columns, 2**30, np.int32), np.full(columns, 40, np.int32))
    for bits in (8, 16, 32):
        check(linear(int8(random, 3, 64), int8(random, 64, columns), bits, factors=factors))


@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(0, 8, 9), (5, 0, 7), (5, 8, 0), (700, 768, 40), (2049, 17, 16), (30, 2048, 40), (9, 4096, 8)],
)
def test_products_of_zero_and_many_blocks(rows, depth, columns):
    random = np.random.default_rng(rows)
    check(linear(int8(random, rows, depth), int8(random, depth, columns)))


@pytest.mark.parametrize("x", [-128, 127])
@pytest.mark.parametrize("weight", [-128, 127])
def test_sums_of_extremes_do_not_saturate(x, weight):
    a, b = np.full((20, 3001), x, np.int8), np.full((3001, 40), weight, np.int8)
    check(linear(a, b))
    check(Case("IntMatMul", (a, b), {"bits": 32}), constants=False)


@pytest.mark.parametrize("shift", [0, 20, 30, 33, 45, 62])
@pytest.mark.parametrize(("bits", "activation"), [(16, ""), (8, ""), (8, "gelu")])
def test_scales_of_any_size_and_sign(bits, activation, shift):
    random = np.random.default_rng(shift)
    shifts = [np.clip(random.integers(shift - 4, shift + 5, 70), 0, 62).astype(np.int32) for _ in range(2)]
    multipliers = [random.integers(-(2**31), 2**31, 70).astype(np.int32) for _ in range(2)]
    factors = [array for pair in zip(multipliers, shifts, strict=True) for array in pair]
    factors = factors if activation else factors[:2]
    check(linear(int8(random, 29, 130), int8(random, 130, 70), bits, activation, factors))


def test_non_constant_weight_is_packed_in_each_run():
    random = np.random.default_rng(0)
    check(linear(int8(random, 2, 9, 40), int8(random, 40, 50)), constants=False)


def test_broadcast_matrices_use_their_own_operands():
    random = np.random.default_rng(0)
    check(Case("IntMatMul", (int8(random, 3, 1, 20, 16), int8(random, 4, 16, 33)), {"bits": 32}), constants=False)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        (([3, 8], [7, 5], [5]), {"bits": 32}, r"x: shape \[3, 8\], expected \[..., 7\] for weight \[7, 5\]"),
        (([3, 8], [8, 5], [6]), {"bits": 32}, r"bias: shape \[6\], expected \[5\]"),
        (([3, 8], [8, 5], [5]), {"bits": 8}, "bits=8 needs the inputs multiplier and shift"),
    ],
)
def test_mismatched_inputs_are_refused(inputs, attributes, message):
    x, weight, bias = (
        np.zeros(shape, dtype) for shape, dtype in zip(inputs, (np.int8, np.int8, np.int32), strict=True)
    )
    with pytest.raises(Exception, match=message):
        run(Case("IntLinear", (x, weight, bias), attributes), constants=False)
