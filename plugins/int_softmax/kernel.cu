// IntSoftmax: i-softmax of int32 rows as int8. A warp takes one row. Up to 1024 elements it keeps the row in registers,
// reads it once and computes each exponential once; a longer one it reads three times: for the maximum, for the sum of
// the exponentials, and for the output.
#include "cuda/broadcast.cuh"
#include "cuda/quad.cuh"
#include "cuda/rounding.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128;

// 1 / out_scale. Its shift is at least 6, so that with the 31 bits of a row's factor the high half of a product is the result.
struct Output {
    int32_t multiplier;
    rounding::Shift shift;

    __device__ __forceinline__ Output(int32_t multiplier, int32_t shift) : multiplier(multiplier), shift(shift + 31) {}
    __device__ __forceinline__ int32_t of(int32_t p, int64_t factor) const {
        const uint32_t high = uint64_t(rounding::multiply_add(factor, p, shift.half)) >> 32;
        return min(high >> (shift.bits - 32), 127u);
    }
};

// Every entry of a row is kept.
struct NoMask {
    static constexpr bool KEEPS_ALL = true;

    __device__ __forceinline__ bool keeps(int32_t) const { return true; }
    __device__ __forceinline__ uint32_t four(int32_t) const { return 0xffffffff; }
    __device__ __forceinline__ bool is_aligned() const { return true; }
};

// A row's mask; its step is 0 where one entry stands for all. Any byte but 0 keeps an entry: a file may hold others than 0
// and 1, which no `bool` may be.
struct Mask {
    static constexpr bool KEEPS_ALL = false;
    const uint8_t* row;
    int step;

    __device__ __forceinline__ bool keeps(int32_t i) const { return row[i * step] != 0; }
    // Of four entries from i on, the bytes: aligned.
    __device__ __forceinline__ uint32_t four(int32_t i) const {
        return step ? *reinterpret_cast<const uint32_t*>(row + i) : row[0] ? 0xffffffff : 0;
    }
    __device__ __forceinline__ bool is_aligned() const { return !step || reinterpret_cast<uint64_t>(row) % quad::SIZE == 0; }
};

// A row of up to PARTS·128 elements. WHOLE: its length is a multiple of four, and all arrays are aligned.
template <int PARTS, bool WHOLE, class Mask>
__device__ __forceinline__ void softmax_in_registers(
    const int32_t* __restrict__ x, const Mask& mask, int32_t length, const intaglio::ExpConstants& exponential,
    const Output& output, int8_t* __restrict__ y) {
    constexpr bool KEEPS_ALL = WHOLE && Mask::KEEPS_ALL;
    const int32_t lane = int32_t(threadIdx.x) % warp::LANES * quad::SIZE, left = length - lane;
    int32_t row[PARTS][quad::SIZE] = {};  // x, and then its exponentials
    uint32_t kept[PARTS] = {};            // a byte for each of them, 0 for those that are masked or behind the row
    int32_t top = warp::LOWEST;
    x += lane, y += lane;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int32_t first = part * quad::WARP;
        if (first >= left) break;
        if (WHOLE) {
            quad::load(x + first, row[part]);
            kept[part] = mask.four(lane + first);
            continue;
        }
        quad::load(x + first, left - first, false, row[part]);
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i)
            if (first + i < left && mask.keeps(lane + first + i)) kept[part] |= 0xff << (8 * i);
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * quad::WARP >= left) break;
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i)
            if (KEEPS_ALL || kept[part] & 0xff << (8 * i)) top = max(top, row[part][i]);
    }
    top = warp::largest(top);
    uint32_t total = 0;  // MAX_ROW exponentials have 31 bits
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * quad::WARP >= left) break;
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            const int32_t p = intaglio::exp(uint32_t(top) - uint32_t(row[part][i]), exponential);
            row[part][i] = KEEPS_ALL || kept[part] & 0xff << (8 * i) ? p : 0;
            total += row[part][i];
        }
    }
    const int64_t factor = intaglio::softmax_factor(output.multiplier, warp::sum(total));
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * quad::WARP >= left) return;
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) row[part][i] = output.of(row[part][i], factor);
        quad::store(y + part * quad::WARP, left - part * quad::WARP, WHOLE, row[part]);
    }
}

// A row of any length.
template <class Mask>
__device__ __forceinline__ void softmax_of_long_row(
    const int32_t* __restrict__ x, const Mask& mask, int32_t length, const intaglio::ExpConstants& exponential,
    const Output& output, int8_t* __restrict__ y) {
    const int lane = threadIdx.x % warp::LANES;
    int32_t top = warp::LOWEST;
    for (int32_t i = lane; i < length; i += warp::LANES)
        if (mask.keeps(i)) top = max(top, x[i]);
    top = warp::largest(top);
    uint32_t total = 0;
    for (int32_t i = lane; i < length; i += warp::LANES)
        if (mask.keeps(i)) total += intaglio::exp(uint32_t(top) - uint32_t(x[i]), exponential);
    const int64_t factor = intaglio::softmax_factor(output.multiplier, warp::sum(total));
    for (int32_t i = lane; i < length; i += warp::LANES) {
        const int32_t p = mask.keeps(i) ? intaglio::exp(uint32_t(top) - uint32_t(x[i]), exponential) : 0;
        y[i] = int8_t(output.of(p, factor));
    }
}

template <bool WHOLE, class Mask>
__device__ __forceinline__ void softmax_row(
    const int32_t* __restrict__ x, const Mask& mask, int32_t length, const intaglio::ExpConstants& exponential,
    const Output& output, int8_t* __restrict__ y) {
    if (length <= quad::WARP) softmax_in_registers<1, WHOLE>(x, mask, length, exponential, output, y);
    else if (length <= 4 * quad::WARP) softmax_in_registers<4, WHOLE>(x, mask, length, exponential, output, y);
    else softmax_in_registers<8, WHOLE>(x, mask, length, exponential, output, y);
}

template <class Mask>
__device__ __forceinline__ void softmax(
    const int32_t* __restrict__ x, const Mask& mask, int32_t length, const intaglio::ExpConstants& exponential,
    const Output& output, int8_t* __restrict__ y) {
    const bool whole = quad::is_aligned(x, length) && quad::is_aligned(y, length) && mask.is_aligned();
    if (length > 8 * quad::WARP) softmax_of_long_row(x, mask, length, exponential, output, y);
    else if (whole) softmax_row<true>(x, mask, length, exponential, output, y);
    else softmax_row<false>(x, mask, length, exponential, output, y);
}

// The row of this warp; all lanes of a warp leave together where it is past the last.
__device__ __forceinline__ int32_t this_row() { return blockIdx.x * (THREADS / warp::LANES) + threadIdx.x / warp::LANES; }

}  // namespace

// x: int32 [rows, length]; y: int8 [rows, length]; limit, left, right, base: i-exp's constants. Grid: (rows / 4).
extern "C" __global__ void __launch_bounds__(THREADS) int_softmax(
    const int32_t* x, int32_t rows, int32_t length, int32_t limit, int32_t left, int32_t right, int32_t base,
    int32_t multiplier, int32_t shift, int8_t* y) {
    const int32_t row = this_row();
    if (row >= rows) return;
    const int64_t start = int64_t(row) * length;
    const intaglio::ExpConstants exponential = {uint32_t(limit), left, right, uint32_t(base)};
    softmax(x + start, NoMask{}, length, exponential, Output(multiplier, shift), y + start);
}

// The same with mask: bool [mask0, mask1, mask2, mask3], broadcast to x: int32 [x0, x1, x2, length].
extern "C" __global__ void __launch_bounds__(THREADS) int_softmax_masked(
    const int32_t* x, const uint8_t* mask, int32_t rows, int32_t length, int32_t limit, int32_t left, int32_t right, int32_t base,
    int32_t multiplier, int32_t shift, int32_t x0, int32_t x1, int32_t x2,
    int32_t mask0, int32_t mask1, int32_t mask2, int32_t mask3, int8_t* y) {
    const int32_t row = this_row();
    if (row >= rows) return;
    const int64_t start = int64_t(row) * length;
    const intaglio::ExpConstants exponential = {uint32_t(limit), left, right, uint32_t(base)};
    const broadcast::Shape whole = {{x0, x1, x2, length}};
    const int64_t mask_start = broadcast::Place(row, whole).start_in({{mask0, mask1, mask2, mask3}});
    softmax(x + start, Mask{mask + mask_start, mask3 != 1}, length, exponential, Output(multiplier, shift), y + start);
}
