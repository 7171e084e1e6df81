// IntSoftmax: i-softmax of int32 rows as int8. A warp takes one row and reads it three times: for the maximum, for the
// sum of the exponentials, and for the output.
#include "cuda/broadcast.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128;

struct Output {
    int32_t multiplier, shift;  // 1 / out_scale
};

// `mask` is the row's, or nullptr; its step is 0 where one entry stands for all. Any byte but 0 keeps an entry: a file may
// hold others than 0 and 1, which no `bool` may be.
__device__ __forceinline__ void softmax_row(
    const int32_t* __restrict__ x, const uint8_t* __restrict__ mask, int mask_step, int32_t length,
    const intaglio::ExpConstants& exponential, const Output& output, int8_t* __restrict__ y) {
    const int lane = threadIdx.x % warp::LANES;
    int32_t top = warp::LOWEST;
    for (int32_t i = lane; i < length; i += warp::LANES)
        if (!mask || mask[i * mask_step] != 0) top = max(top, x[i]);
    top = warp::largest(top);
    int64_t total = 0;
    for (int32_t i = lane; i < length; i += warp::LANES)
        if (!mask || mask[i * mask_step] != 0) total += intaglio::exp(uint32_t(top) - uint32_t(x[i]), exponential);
    const int64_t factor = intaglio::softmax_factor(output.multiplier, warp::sum(total));
    for (int32_t i = lane; i < length; i += warp::LANES) {
        const bool kept = !mask || mask[i * mask_step] != 0;
        const int32_t p = kept ? intaglio::exp(uint32_t(top) - uint32_t(x[i]), exponential) : 0;
        y[i] = int8_t(intaglio::softmax_output(p, factor, output.shift));
    }
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
    softmax_row(x + start, nullptr, 0, length, exponential, {multiplier, shift}, y + start);
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
    const int64_t mask_start = broadcast::row_start(row, {{x0, x1, x2, length}}, {{mask0, mask1, mask2, mask3}});
    softmax_row(x + start, mask + mask_start, mask3 != 1, length, exponential, {multiplier, shift}, y + start);
}
