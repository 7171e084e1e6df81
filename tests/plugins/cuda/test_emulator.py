"""The emulator finds errors that a GPU would ignore, and computes what a GPU computes."""

import numpy as np
import pytest
from covering import examples
from cuda_emulator import POISON, emulate
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_cases import int8

from intaglio.errors import EngineError, MissingExtraError
from intaglio.plugins.cuda.launching.geometry import Launch

BIAS = 4096  # added to an index, which may be negative, as no scalar is

KERNELS = """
#include "cuda/async_copy.cuh"
#include "cuda/matrix_unit.cuh"
extern "C" __global__ void __launch_bounds__(1024) some_threads_leave_before_the_barrier(int* y) {
    if (threadIdx.x == 3) return;
    __syncthreads();
    y[threadIdx.x] = 1;
}
extern "C" __global__ void __launch_bounds__(1024) two_barriers_where_one_belongs(int* y) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    y[threadIdx.x] = 1;
}
extern "C" __global__ void __launch_bounds__(1024) half_a_warp_shuffles(int* y) {
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
extern "C" __global__ void __launch_bounds__(1024) partial_mask(int* y) {
    y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1, 1);
}
extern "C" __global__ void __launch_bounds__(1024) shared_index(int index, int* y) {
    __shared__ int values[8];
    values[index - 4096] = 1;
    __syncthreads();
    y[threadIdx.x] = values[threadIdx.x % 8];
}
extern "C" __global__ void __launch_bounds__(1024) dynamic_index(int index, int* y) {
    INTAGLIO_DYNAMIC_SHARED(int, values);
    values[index - 4096] = 1;
    y[threadIdx.x] = values[0];
}
extern "C" __global__ void __launch_bounds__(1024) read_at(const int* x, int index, int* y) { y[0] = x[index - 4096]; }
extern "C" __global__ void __launch_bounds__(1024) write_at(int index, int* y) { y[index - 4096] = 1; }
extern "C" __global__ void __launch_bounds__(1024) add(const int* x, int* y) { y[0] = x[0] + x[1]; }
extern "C" __global__ void __launch_bounds__(1024) load_four(const int* x, int index, int* y) {
    const int4 four = *reinterpret_cast<const int4*>(x + index);
    y[0] = four.x + four.w;
}
extern "C" __global__ void __launch_bounds__(1024) uninitialised(int* y) {
    __shared__ int values[64];
    y[blockIdx.x] = values[0];
    values[0] = 1;
}
extern "C" __global__ void __launch_bounds__(1024) neighbour_without_barrier(int* y) {
    __shared__ int values[64];
    values[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = values[threadIdx.x ^ 33];
}
extern "C" __global__ void __launch_bounds__(1024) copy_without_wait(const int8_t* x, int wait, int* y) {
    __shared__ __align__(16) int8_t values[16];
    async_copy::Copy16 copy;
    copy.start(values, x, false);
    copy.finish();
    async_copy::commit();
    if (wait) async_copy::wait<0>();
    y[0] = values[5];
    async_copy::wait<0>();
}
extern "C" __global__ void __launch_bounds__(1024) copies_left_behind(const int8_t* x, int* y) {
    __shared__ __align__(16) int8_t values[16];
    async_copy::Copy16 copy;
    copy.start(values, x, false);
    y[0] = values[5];
}
extern "C" __global__ void __launch_bounds__(1024) positions(int* y) {
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    y[block * 64 + thread] = 1000 * block + thread;
}
extern "C" __global__ void __launch_bounds__(1024) warp_functions(const int* x, int* y) {
    const int value = x[threadIdx.x];
    int* row = y + 6 * threadIdx.x;
    row[0] = __shfl_sync(0xffffffffu, value, 5);
    row[1] = __shfl_xor_sync(0xffffffffu, value, 12);
    row[2] = __shfl_down_sync(0xffffffffu, value, 4);
    row[3] = int(__ballot_sync(0xffffffffu, value > 0));
    row[4] = __any_sync(0xffffffffu, value > 90);
    row[5] = __all_sync(0xffffffffu, value > -90);
}
extern "C" __global__ void __launch_bounds__(1024) atomics(const int* x, int* total) {
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) total[0] = sum;
}
namespace {
template <bool UNSIGNED>
__device__ __forceinline__ void tile(const int8_t* a, const int8_t* b, int* c) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    __shared__ __align__(16) int8_t rows[512];
    for (int i = threadIdx.x; i < 512; i += 32) rows[i] = a[i];
    __syncwarp();
    uint32_t left[4], right[2] = {0, 0};
    matrix_unit::load_fragment(left, rows + threadIdx.x % 16 * 32 + threadIdx.x / 16 * 16);
    for (int k = 0; k < 4; ++k) {
        right[0] |= uint32_t(uint8_t(b[(4 * t + k) * 8 + g])) << (8 * k);
        right[1] |= uint32_t(uint8_t(b[(16 + 4 * t + k) * 8 + g])) << (8 * k);
    }
    int sums[4] = {1, 2, 3, 4};
    matrix_unit::multiply_accumulate<UNSIGNED>(sums, left, right);
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i] - i - 1;
}
}
extern "C" __global__ void __launch_bounds__(32) signed_tile(const int8_t* a, const int8_t* b, int* c) {
    tile<false>(a, b, c);
}
extern "C" __global__ void __launch_bounds__(32) unsigned_tile(const int8_t* a, const int8_t* b, int* c) {
    tile<true>(a, b, c);
}
extern "C" __global__ void __launch_bounds__(32) float16_tile(const uint16_t* a, const uint16_t* b, float* c) {
    const int g = threadIdx.x / 4, t = threadIdx.x % 4;
    uint32_t left[4], right[2];
    for (int i = 0; i < 4; ++i)
        left[i] = *reinterpret_cast<const uint32_t*>(a + (g + i % 2 * 8) * 16 + i / 2 * 8 + 2 * t);
    for (int i = 0; i < 2; ++i) right[i] = uint32_t(b[(8 * i + 2 * t + 1) * 8 + g]) << 16 | b[(8 * i + 2 * t) * 8 + g];
    float sums[4] = {1, 2, 3, 4};
    matrix_unit::multiply_accumulate(sums, left, right);
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i] - i - 1;
}
extern "C" __global__ void __launch_bounds__(1024) to_float32(const uint16_t* x, float* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = half::to_float(x[i]);
}
extern "C" __global__ void __launch_bounds__(1024) to_float16(const float* x, uint16_t* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = half::from_float(x[i]);
}
extern "C" __global__ void __launch_bounds__(1024) pairs_of_float16(const uint32_t* a, const uint32_t* b, uint32_t* y) {
    y[2 * threadIdx.x] = half::subtract(a[threadIdx.x], b[threadIdx.x]);
    y[2 * threadIdx.x + 1] = half::multiply(a[threadIdx.x], b[threadIdx.x]);
}
#include "cuda/packed_weights/numbers.cuh"
extern "C" __global__ void __launch_bounds__(1024) permuted(const int* selectors, int* y) {
    y[threadIdx.x] = packed_numbers::permute(0x83828180u, 0x07060504u, selectors[threadIdx.x]);
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> str:
    """A folder with small kernels, most of them wrong."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "kernel.cu").write_text(KERNELS)
    return str(folder)


def run(folder, entry, inputs=(), scalars=(), outputs=(((64,), np.int32),), threads=64, grid=(1, 1, 1), **options):
    shared_bytes = options.pop("shared_bytes", 0)
    block = threads if isinstance(threads, tuple) else (threads, 1, 1)
    return emulate(folder, Launch(entry, grid, block, tuple(scalars), shared_bytes), inputs, outputs, **options)


def fails(match, *arguments, **options):
    with pytest.raises(EngineError, match=match) as caught:
        run(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_thread_that_exits_before_the_barrier_is_named(kernels):
    fails(
        r"thread \(0, 0, 0\) of block \(0, 0, 0\) waits at __syncthreads in line 6 for thread \(3, 0, 0\), which has",
        kernels,
        "some_threads_leave_before_the_barrier",
    )


def test_warps_at_different_barriers_are_reported(kernels):
    fails(
        r"waits at __syncthreads in line 11 for thread \(32, 0, 0\), which waits at __syncthreads in line 13",
        kernels,
        "two_barriers_where_one_belongs",
    )


def test_warp_function_reached_by_half_the_warp_is_refused(kernels):
    fails(
        r"waits at __shfl_xor_sync in line 18 for thread \(16, 0, 0\), which has ended", kernels, "half_a_warp_shuffles"
    )


def test_mask_of_half_the_warp_is_refused(kernels):
    fails("with the mask 0000ffff, expected all 32 lanes", kernels, "partial_mask")


def test_partial_last_warp_is_refused(kernels):
    inputs = [np.arange(40, dtype=np.int32)]
    fails(
        "the last warp has only 8 threads, expected 32",
        kernels,
        "warp_functions",
        inputs,
        threads=40,
        outputs=[((240,), np.int32)],
    )


@pytest.mark.parametrize("index", [8, -1])
def test_index_outside_shared_memory_is_refused(kernels, index):
    fails("indexes outside of an array at kernel.cu:25", kernels, "shared_index", scalars=[BIAS + index])


def test_dynamic_shared_memory_is_bounds_checked(kernels):
    assert run(kernels, "dynamic_index", scalars=[BIAS], shared_bytes=16)[0][0] == 1
    fails(
        "touches byte 16 of its 16 bytes of dynamic shared memory",
        kernels,
        "dynamic_index",
        scalars=[BIAS + 4],
        shared_bytes=16,
    )
    fails("writes outside of its dynamic shared memory", kernels, "dynamic_index", scalars=[BIAS - 1], shared_bytes=16)


@pytest.mark.parametrize(("index", "offset"), [(12, 48), (-1024, -4096)])
def test_out_of_bounds_read_names_array_and_location(kernels, index, offset):
    x = np.arange(12, dtype=np.int32)
    fails(rf"touches byte {offset} of array 0 \(48 bytes\)", kernels, "read_at", [x], [BIAS + index], threads=1)


@pytest.mark.parametrize("index", [1, -1])
def test_out_of_bounds_write_is_found_within_a_page(kernels, index):
    fails(
        r"writes outside of array 0 \(4 bytes\)", kernels, "write_at", (), [BIAS + index], [((1,), np.int32)], threads=1
    )


def test_signed_overflow_is_refused(kernels):
    assert run(kernels, "add", [np.array([2**31 - 2, 1], np.int32)], threads=1)[0][0] == 2**31 - 1
    fails("overflows a signed integer", kernels, "add", [np.array([2**31 - 1, 1], np.int32)], threads=1)


def test_misaligned_vector_is_refused(kernels):
    x = np.arange(16, dtype=np.int32)
    assert run(kernels, "load_four", [x], [4], threads=1)[0][0] == 4 + 7
    fails("reads or writes a misaligned address", kernels, "load_four", [x], [1], threads=1)


def test_shared_memory_is_poisoned_for_every_block(kernels):
    assert (run(kernels, "uninitialised", threads=1, grid=(3, 1, 1))[0][:3].view(np.uint8) == POISON).all()


def test_missing_barrier_is_found_by_some_thread_order(kernels):
    expected = np.arange(64) ^ 33
    right = [bool((run(kernels, "neighbour_without_barrier", seed=seed)[0] == expected).all()) for seed in range(4)]
    assert not any(right)


def test_asynchronous_copy_is_visible_only_after_its_wait(kernels):
    x = np.arange(16, dtype=np.int8)
    assert run(kernels, "copy_without_wait", [x], [1], threads=1, sm=80)[0][0] == 5
    assert run(kernels, "copy_without_wait", [x], [0], threads=1, sm=80)[0][0] == np.uint8(POISON).astype(np.int8)
    fails("ended with asynchronous copies", kernels, "copies_left_behind", [x], threads=1, sm=80)


def test_run_after_a_failure_succeeds(kernels):
    fails("has ended", kernels, "some_threads_leave_before_the_barrier")
    assert (run(kernels, "positions")[0] == np.arange(64)).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_thread_positions_in_three_dimensions(kernels, seed):
    (y,) = run(kernels, "positions", outputs=[((24, 64), np.int32)], threads=(4, 8, 2), grid=(2, 3, 4), seed=seed)
    np.testing.assert_array_equal(y, 1000 * np.arange(24)[:, None] + np.arange(64))


def test_warp_functions_compute_their_definition(kernels):
    x = np.random.default_rng(0).integers(-100, 100, 64).astype(np.int32)
    (y,) = run(kernels, "warp_functions", [x], outputs=[((2, 32, 6), np.int32)], seed=3)
    for warp, values in zip(y, x.reshape(2, 32), strict=True):
        lanes = np.arange(32)
        down = values[np.where(lanes + 4 < 32, lanes + 4, lanes)]
        votes = np.packbits(values > 0, bitorder="little").view(np.int32)[0]
        expected = [values[5], values[lanes ^ 12], down, votes, (values > 90).any(), (values > -90).all()]
        np.testing.assert_array_equal(warp, np.stack([np.broadcast_to(one, 32) for one in expected], axis=1))


def test_atomic_additions_are_complete(kernels):
    x = np.arange(64, dtype=np.int32)
    assert run(kernels, "atomics", [x], outputs=[((1,), np.int32)], seed=2)[0][0] == x.sum()


@pytest.mark.parametrize("sm", [75, 80])
@pytest.mark.parametrize(("entry", "dtype"), [("signed_tile", np.int8), ("unsigned_tile", np.uint8)])
@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**32 - 1))
def test_tensor_core_multiplies_a_tile(kernels, sm, entry, dtype, seed):
    random = np.random.default_rng(seed)
    a, b = int8(random, 16, 32), int8(random, 32, 8)
    (c,) = run(kernels, entry, [a, b], outputs=[((16, 8), np.int32)], threads=32, sm=sm, seed=seed)
    np.testing.assert_array_equal(c, a.view(dtype).astype(np.int32) @ b.astype(np.int32))


@pytest.mark.parametrize("sm", [75, 80])
@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**32 - 1))
def test_tensor_core_multiplies_a_float16_tile(kernels, sm, seed):
    random = np.random.default_rng(seed)  # halves of small integers: every sum is exact
    a, b = (random.integers(-40, 41, shape).astype(np.float16) / 2 for shape in ((16, 16), (16, 8)))
    (c,) = run(kernels, "float16_tile", [a, b], outputs=[((16, 8), np.float32)], threads=32, sm=sm, seed=seed)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


def test_every_float16_is_converted_exactly(kernels):
    x = np.arange(2**16, dtype=np.uint16)
    (y,) = run(kernels, "to_float32", [x], outputs=[((2**16,), np.float32)], threads=1024, grid=(64, 1, 1))
    np.testing.assert_array_equal(y, x.view(np.float16).astype(np.float32))


def test_float32_to_float16_rounding_equals_numpy(kernels):
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = every[np.isfinite(every)]
    between = np.sort(finite)
    halfway = (between[:-1] + between[1:]) / 2
    limits = np.array([65519.99, 65520.0, -65520.0, np.inf, -np.inf, np.nan, 1e-45, -0.0], np.float32)
    close = [np.nextafter(halfway, np.float32(side)) for side in (-np.inf, np.inf)]
    x = np.concatenate([every, halfway, *close, limits]).astype(np.float32)
    x = np.pad(x, (0, -len(x) % 1024))
    (y,) = run(kernels, "to_float16", [x], outputs=[(x.shape, np.float16)], threads=1024, grid=(len(x) // 1024, 1, 1))
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(want))
    np.testing.assert_array_equal(
        np.where(np.isnan(y), 0, y.view(np.uint16)), np.where(np.isnan(y), 0, want.view(np.uint16))
    )


def test_float16_pair_arithmetic_equals_numpy(kernels):
    random = np.random.default_rng(0)
    a, b = (random.normal(size=2048) * 2.0 ** random.integers(-9, 6, 2048) for _ in range(2))
    a, b = a.astype(np.float16), b.astype(np.float16)
    (y,) = run(kernels, "pairs_of_float16", [a, b], outputs=[((1024, 2, 2), np.float16)], threads=1024)
    a, b = a.reshape(1024, 2), b.reshape(1024, 2)
    np.testing.assert_array_equal(y, np.stack([a - b, a * b], axis=1))


def test_byte_permutation_replicates_signs(kernels):
    selectors = np.array([0x3210, 0x7654, 0x5140, 0xBA98, 0xFEDC, 0x9D8C] + [0] * 58, np.int32)
    (y,) = run(kernels, "permuted", [selectors], outputs=[((64,), np.uint32)])
    expected = [0x83828180, 0x07060504, 0x05810480, 0xFFFFFFFF, 0x00000000, 0xFF00FF00]
    assert y[:6].tolist() == expected


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (Launch("add", (1, 65536, 1), (32, 1, 1), ()), "grid .* expected at most"),
        (Launch("add", (1, 1, 1), (1024, 2, 1), ()), "2048 threads"),
        (Launch("add", (1, 1, 1), (32, 1, 1), (), 49153), "49153 bytes of dynamic shared memory"),
        (Launch("add", (1, 1, 1), (1, 1, 1), (1, 2)), "has 2 parameters, got 3 arguments"),
        (Launch("no_such_kernel", (1, 1, 1), (1, 1, 1), ()), "no kernel of this name"),
    ],
)
def test_invalid_launch_is_refused(kernels, launch, message):
    with pytest.raises(EngineError, match=message):
        emulate(kernels, launch, [], [((1,), np.int32)])


def test_empty_grid_has_one_block(kernels):
    assert run(kernels, "positions", grid=(0, 1, 1))[0].shape == run(kernels, "positions")[0].shape
    fails(r"touches byte 0 of array 0 \(0 bytes\)", kernels, "positions", outputs=[((0,), np.int32)], grid=(0, 1, 1))


def test_compile_error_names_its_line(tmp_path):
    (tmp_path / "kernel.cu").write_text("int broken = ;")
    fails(r"kernel.cu:\d+:\d+: error", str(tmp_path), "broken")


def test_missing_compiler_prints_one_line(tmp_path, monkeypatch):
    (tmp_path / "kernel.cu").write_text("")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingExtraError, match="the emulation of CUDA needs it"):
        run(str(tmp_path), "anything")
