// IntSoftmax: i-softmax of int32 rows as int8. A warp takes one row. Up to 1024 elements it keeps the row in registers,
// reads it once and computes each exponential once; a longer one it reads three times: for the maximum, for the sum of
// the exponentials, and for the output.
#include "cuda/broadcast.cuh"
#include "cuda/quad.cuh"
#include "cuda/rounding.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128;

// 1 / out_scale, and the shift after a row's factor.
struct Output {
    int32_t multiplier;
    rounding::Shift shift;

    __device__ __forceinline__ Output(int32_t multiplier, int32_t shift) : multiplier(multiplier), shift(shift + 31) {}
    __device__ __forceinline__ int32_t of(int32_t p, int64_t factor) const { return rounding::clip8(p * factor + shift.half, shift); }
};

// A row's mask, or nullptr; its step is 0 where one entry stands for all. Any byte but 0 keeps an entry: a file may hold
// others than 0 and 1, which no `bool` may be.
struct Mask {
    const uint8_t* row;
    int step;

    __device__ __forceinline__ bool keeps(int32_t i) const { return !row || row[i * step] != 0; }
};

// A row of up to PARTS·128 elements.
template <int PARTS>
__device__ __forceinline__ void softmax_in_registers(
    const int32_t* __restrict__ x, const Mask& mask, int32_t length, const intaglio::ExpConstants& exponential,
    const Output& output, int8_t* __restrict__ y) {
    const int32_t lane = int32_t(threadIdx.x) % warp::LANES * quad::SIZE;
    const bool aligned = quad::is_aligned(x, length);
    int32_t row[PARTS][quad::SIZE] = {};  // x, and then its exponentials
    uint32_t kept = 0;  // bit 4·part + i
    int32_t top = warp::LOWEST;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int32_t first = part * quad::WARP + lane;
        if (first < length) quad::load(x + first, length - first, aligned, row[part]);
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            const int32_t place = part * quad::WARP + lane + i;
            if (place >= length || !mask.keeps(place)) continue;
            kept |= 1u << (part * quad::SIZE + i);
            top = max(top, row[part][i]);
        }
    top = warp::largest(top);
    uint32_t total = 0;  // MAX_ROW exponentials have 31 bits
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            const bool is_kept = kept >> (part * quad::SIZE + i) & 1;
            row[part][i] = is_kept ? intaglio::exp(uint32_t(top) - uint32_t(row[part][i]), exponential) : 0;
            total += row[part][i];
        }
    const int64_t factor = intaglio::softmax_factor(output.multiplier, warp::sum(total));
    const bool y_aligned = quad::is_aligned(y, length);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int32_t first = part * quad::WARP + lane;
        if (first >= length) return;
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) row[part][i] = output.of(row[part][i], factor);
        quad::store(y + first, length - first, y_aligned, row[part]);
    }
}

// A row of any length.
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

__device__ __forceinline__ void softmax_row(
    const int32_t* __restrict__ x, const Mask& mask, int32_t length, const intaglio::ExpConstants& exponential,
    const Output& output, int8_t* __restrict__ y) {
    if (length <= quad::WARP) softmax_in_registers<1>(x, mask, length, exponential, output, y);
    else if (length <= 4 * quad::WARP) softmax_in_registers<4>(x, mask, length, exponential, output, y);
    else if (length <= 8 * quad::WARP) softmax_in_registers<8>(x, mask, length, exponential, output, y);
    else softmax_of_long_row(x, mask, length, exponential, output, y);
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
    softmax_row(x + start, {nullptr, 0}, length, exponential, Output(multiplier, shift), y + start);
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
    softmax_row(x + start, {mask + mask_start, mask3 != 1}, length, exponential, Output(multiplier, shift), y + start);
}
