"""Every CUDA kernel against the NumPy reference, integers bit for bit: emulated as a T4 and an A100, and on a GPU."""

import numpy as np
import pytest
from covering import examples
from cuda_emulator import emulate
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kernel_cases import check, kernel_case
from operator_cases import FLOAT_LIMITS, ON_GPUS, Case, floats, in_float16, indices, int8, levels, longest, sparse_rows

from intaglio.errors import EngineError
from intaglio.plugins.group_matmul.signature import LEVEL_BITS
from intaglio.plugins.int_linear import launch as int_linear


@pytest.mark.parametrize("operator", ON_GPUS)
@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1))
def test_kernel_equals_reference(run, operator, seed):
    check(run, kernel_case(operator, np.random.default_rng(seed)), seed)


@pytest.mark.parametrize("operator", ON_GPUS)
def test_kernel_equals_reference_on_rows_of_4096(run, operator):
    check(run, longest(operator))


@pytest.mark.parametrize("operator", FLOAT_LIMITS)
def test_kernel_equals_reference_on_rows_of_4096_in_float16(run, operator):
    check(run, in_float16(longest(operator)))


@pytest.mark.parametrize("sm", [75, 80])
@pytest.mark.parametrize("operator", ON_GPUS)
@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32 - 1))
def test_arrays_may_begin_anywhere(operator, sm, seed):
    """A part of another tensor begins at a multiple of its elements, 4 bytes here, and not of 16."""
    check(
        lambda case, seed: emulate(case.folder, case.launch(sm), case.inputs, case.made(), sm, seed, offset=4),
        in_float16(longest(operator))
        if operator in FLOAT_LIMITS and seed % 2
        else kernel_case(operator, np.random.default_rng(seed)),
        seed,
    )


# Numbers of rows at which the grid gets more blocks or another block shape; channels around the widths of both.
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@settings(max_examples=examples(12))
@given(
    rows=st.sampled_from([0, 1, 7, 8, 9, 16, 17, 64, 65, 130, 264, 265, 521]),
    channels=st.sampled_from([1, 31, 32, 33, 66, 127, 129, 200]),
    words=st.integers(0, 20) | st.sampled_from([4, 12, 36, 72]),  # steps of 128 numbers, one or two of a warp
    seed=st.integers(0, 99),
)
@example(rows=8, channels=33, words=20, seed=1)
@example(rows=17, channels=129, words=13, seed=1)
@example(rows=17, channels=130, words=0, seed=1)
@example(rows=1, channels=40, words=72, seed=2)
@example(rows=16, channels=33, words=40, seed=2)
@example(rows=41, channels=31, words=36, seed=3)
def test_packed_weights_in_partial_blocks_equal_the_reference(run, bits, rows, channels, words, seed):
    random = np.random.default_rng(seed)
    depth = 32 * (words if rows < 200 else words % 5)
    x, packed = floats(random, rows, depth), indices(random, channels, depth, bits)
    attributes = {"bits": bits, "K": depth}
    if bits > 4 or (random.random() < 0.5 and depth):
        attributes["group_size"] = 32 * int(random.choice([size for size in (1, 2, 5, 7) if depth % (32 * size) == 0]))
        scales = floats(random, channels, depth // attributes["group_size"])
        zero_points = random.integers(0, 2**bits, scales.shape).astype(np.uint8) if random.random() < 0.5 else None
        constants = zero_points, levels(random, bits) if bits in LEVEL_BITS and zero_points is None else None
        check(run, in_float16(Case("GroupMatMul", (x, packed, scales, *constants), attributes)), seed)
    else:
        check(run, in_float16(Case("LutMatMul", (x, packed, floats(random, channels, 2**bits)), attributes)), seed)


def sparse_case(random, counts, depth, rows):
    """Row n of the sparse matrix has counts[n] values."""
    sparse = sparse_rows(random, counts, depth)
    return in_float16(Case("CsrMatMul", (floats(random, rows, depth), *sparse, floats(random, rows, len(counts))), {}))


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize(
    "counts",
    [
        [0] * 1500,  # more rows than a window has, no value
        [0, 0, 1500, 0, 3, 0],  # a row of several windows, processed by one block
        [1] * 700,
        [508, 3, 0, 0, 511, 1, 1],  # rows that end with a window
        [0] * 512 + [128] * 4 + [0] * 3,
        [1, 2, 3] * 50 + [300] + [5] * 40,
    ],
)
def test_each_window_of_a_sparse_matrix_is_computed_once(run, counts, rows):
    check(run, sparse_case(np.random.default_rng(1), counts, 1600, rows), 1)


def test_sparse_sums_are_independent_of_the_thread_order():
    case = sparse_case(np.random.default_rng(2), [100, 0, 900, 7, 30], 1000, 3)
    case = Case(case.operator, tuple(a.astype(np.float32) if a.dtype == np.float16 else a for a in case.inputs), {})
    arguments = (case.folder, case.launch(), case.inputs, case.made(), 80)
    first = emulate(*arguments, seed=0)[0]
    assert all(np.array_equal(first, emulate(*arguments, seed=seed)[0]) for seed in (1, 2))


def tables_case(random, counts, depth, rows, bits):
    """A weight with lookup tables and that sparse matrix; the dense part is small, so that no sparse value hides."""
    x, packed = floats(random, rows, depth), indices(random, len(counts), depth, bits)
    x, packed, lut, *sparse = in_float16(
        Case(
            "LutMatMul",
            (x, packed, floats(random, len(counts), 2**bits), *sparse_rows(random, counts, depth)),
            {"bits": bits, "K": depth},
        )
    ).inputs
    return Case("LutMatMul", (x, packed, (lut * 2.0**-12).astype(lut.dtype), *sparse), {"bits": bits, "K": depth})


# Rows of x in blocks for one row, for up to 8, 16 and 32, and in blocks for many rows, the last ones partly filled.
@pytest.mark.parametrize("rows", [1, 2, 8, 9, 17, 31, 70, 129])
@pytest.mark.parametrize(
    ("bits", "counts", "depth"),
    [
        (4, [0] * 40, 128),
        (3, [1024] + [0] * 16 + [3, 32, 33, 31, 256, 257, 0, 900], 1024),  # long rows, and those of whole pieces
        (2, [7, 0, 12] * 47 + [64], 160),  # only in blocks for many rows, as of the next depth
        (4, [0, 1, 33] + [5] * 130 + [1056], 1056),
        (4, [1, 2, 3] * 50 + [300] + [5] * 40, 384),
    ],
)
def test_sparse_values_of_tables_equal_the_reference(run, bits, counts, depth, rows):
    case = tables_case(np.random.default_rng(rows), counts, depth, rows, bits)
    check(run, case, rows)
    single = tuple(a.astype(np.float32) if a.dtype == np.float16 else a for a in case.inputs)
    check(run, Case("LutMatMul", single, case.attributes), rows)


@pytest.mark.parametrize("rows", [1, 8, 20, 70])
@pytest.mark.parametrize("sm", [75, 80])
def test_sums_with_sparse_values_are_independent_of_the_thread_order(sm, rows):
    case = tables_case(np.random.default_rng(3), [100, 0, 900, 7, 30] * 5, 1024, rows, 3)
    arguments = (case.folder, case.launch(sm), case.inputs, case.made(), sm)
    first = emulate(*arguments, seed=0)[0]
    assert all(np.array_equal(first, emulate(*arguments, seed=seed)[0]) for seed in (1, 2))


def test_sparse_product_of_two_dtypes_is_refused():
    single, half = longest("CsrMatMul"), in_float16(longest("CsrMatMul"))
    with pytest.raises(EngineError, match=r"x is float16 and y float32, expected the same\. Cast one of them"):
        Case(half.operator, (half.inputs[0], *single.inputs[1:]), {}).launch()


@settings(max_examples=examples(20))
@given(rows=st.integers(0, 200), inner=st.integers(0, 13), columns=st.integers(0, 20), seed=st.integers(0, 99))
@example(rows=128, inner=12, columns=16, seed=1)
@example(rows=65, inner=9, columns=17, seed=1)
def test_aligned_matrices_in_partial_tiles_equal_the_reference(run, rows, inner, columns, seed):
    random = np.random.default_rng(seed)
    x, weight = int8(random, rows, 16 * inner), int8(random, 16 * inner, 16 * columns)
    bias = random.integers(-(2**20), 2**20, 16 * columns).astype(np.int32)
    check(run, Case("IntLinear", (x, weight, bias), {"bits": 32}), seed)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_wide_tiles_equal_the_reference(run, monkeypatch, seed):
    """Where the tests' small matrices would take narrow ones."""
    monkeypatch.setattr(int_linear, "MOST", 0)
    check(run, kernel_case("IntLinear", np.random.default_rng(seed)), seed)


@pytest.mark.parametrize("most", [0, int_linear.MOST])
@pytest.mark.parametrize("rows", [15, 16, 17, 63, 64, 65])
def test_tiles_around_their_sizes_equal_the_reference(run, monkeypatch, rows, most):
    monkeypatch.setattr(int_linear, "MOST", most)
    random = np.random.default_rng(rows)
    x, weight = int8(random, rows, 273), int8(random, 273, 161)
    check(run, Case("IntLinear", (x, weight, np.zeros(161, np.int32)), {"bits": 32}), rows)
    factors = np.full(161, 2**30, np.int32), np.full(161, 38, np.int32)
    other = random.integers(-(2**16), 2**16, (rows, 161)).astype(np.int32)
    gate, residual = (*factors, other, *factors), (*[None] * 5, other, np.arange(161, dtype=np.int32))
    for final, attributes in ((gate, {"bits": 8, "activation": "gelu"}), (residual, {"bits": 16})):
        check(run, Case("IntLinear", (x, weight, np.zeros(161, np.int32), *factors, *final), attributes), rows)


# Rows that fill the registers of a warp in each way, that do not, and that are longer.
