// IntAdd: the sum of two tensors with factors of their own, rounded once. A block takes one row of the output, its
// threads the channels; x and y broadcast.
#include "cuda/broadcast.cuh"

namespace {

constexpr int THREADS = 128;

// An input of int8 or int32, by the bytes of an element, and where this block's row of it begins.
struct Operand {
    const void* __restrict__ data;
    int32_t bytes, step;
    int64_t start;

    __device__ __forceinline__ int32_t operator[](int32_t channel) const {
        const int64_t i = start + channel * step;
        return bytes == 1 ? static_cast<const int8_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
    }
};

__device__ __forceinline__ Operand row_of(const void* data, int32_t bytes, const broadcast::Shape& whole, const broadcast::Shape& array) {
    return {data, bytes, array.length[3] != 1, broadcast::row_start(blockIdx.x, whole, array)};
}

template <class Out, class Clip>
__device__ __forceinline__ void add_row(
    const Operand& x, const Operand& y, const int32_t* __restrict__ x_multiplier, const int32_t* __restrict__ y_multiplier,
    const int32_t* __restrict__ shift, int32_t x_multipliers, int32_t y_multipliers, int32_t shifts, int32_t channels,
    Out* __restrict__ sum, Clip clip) {
    sum += int64_t(blockIdx.x) * channels;
    for (int32_t channel = threadIdx.x; channel < channels; channel += THREADS) {
        const int64_t total = intaglio::scaled_sum(
            x[channel], x_multiplier[x_multipliers == 1 ? 0 : channel],
            y[channel], y_multiplier[y_multipliers == 1 ? 0 : channel], shift[shifts == 1 ? 0 : channel]);
        sum[channel] = Out(clip(total));
    }
}

}  // namespace

// x: [x0, x1, x2, x3] and y: [y0, y1, y2, y3], int8 or int32 by the bytes of an element; x_multiplier, y_multiplier,
// shift: int32, of 1 or `channels` by their lengths; sum: int8 [rows0, rows1, rows2, channels]. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS) int_add_8(
    const void* x, const void* y, const int32_t* x_multiplier, const int32_t* y_multiplier, const int32_t* shift,
    int32_t x_multipliers, int32_t y_multipliers, int32_t shifts, int32_t x_bytes, int32_t y_bytes,
    int32_t rows0, int32_t rows1, int32_t rows2, int32_t channels, int32_t x0, int32_t x1, int32_t x2, int32_t x3,
    int32_t y0, int32_t y1, int32_t y2, int32_t y3, int8_t* sum) {
    if (rows0 == 0 || rows1 == 0 || rows2 == 0) return;
    const broadcast::Shape whole = {{rows0, rows1, rows2, channels}};
    add_row(row_of(x, x_bytes, whole, {{x0, x1, x2, x3}}), row_of(y, y_bytes, whole, {{y0, y1, y2, y3}}),
            x_multiplier, y_multiplier, shift, x_multipliers, y_multipliers, shifts, channels, sum, intaglio::clip8);
}

// The same with sum: int32 holding 16-bit values.
extern "C" __global__ void __launch_bounds__(THREADS) int_add_16(
    const void* x, const void* y, const int32_t* x_multiplier, const int32_t* y_multiplier, const int32_t* shift,
    int32_t x_multipliers, int32_t y_multipliers, int32_t shifts, int32_t x_bytes, int32_t y_bytes,
    int32_t rows0, int32_t rows1, int32_t rows2, int32_t channels, int32_t x0, int32_t x1, int32_t x2, int32_t x3,
    int32_t y0, int32_t y1, int32_t y2, int32_t y3, int32_t* sum) {
    if (rows0 == 0 || rows1 == 0 || rows2 == 0) return;
    const broadcast::Shape whole = {{rows0, rows1, rows2, channels}};
    add_row(row_of(x, x_bytes, whole, {{x0, x1, x2, x3}}), row_of(y, y_bytes, whole, {{y0, y1, y2, y3}}),
            x_multiplier, y_multiplier, shift, x_multipliers, y_multipliers, shifts, channels, sum, intaglio::clip16);
}
