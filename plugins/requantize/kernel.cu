// Requantize: y = clip(round(x·multiplier / 2^shift)), the multiplier and the shift per channel or one for all.
// A block takes one row, its threads the channels: no division finds the channel, and all accesses are in order.
#include "integer_math.h"

namespace {

constexpr int THREADS = 128;

template <class Out, class Clip>
__device__ __forceinline__ void requantize_row(
    const int32_t* __restrict__ x, const int32_t* __restrict__ multiplier, const int32_t* __restrict__ shift,
    int32_t rows, int32_t channels, int32_t multipliers, int32_t shifts, Out* __restrict__ y, Clip clip) {
    if (int32_t(blockIdx.x) >= rows) return;
    const int64_t row = int64_t(blockIdx.x) * channels;
    for (int32_t channel = threadIdx.x; channel < channels; channel += THREADS) {
        const int32_t m = multiplier[multipliers == 1 ? 0 : channel], s = shift[shifts == 1 ? 0 : channel];
        y[row + channel] = Out(clip(intaglio::requantize(x[row + channel], m, s)));
    }
}

}  // namespace

// x: int32 [rows, channels]; multiplier: int32 [multipliers], shift: int32 [shifts], 1 or channels each;
// y: int8 [rows, channels]. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS) requantize_8(
    const int32_t* x, const int32_t* multiplier, const int32_t* shift,
    int32_t rows, int32_t channels, int32_t multipliers, int32_t shifts, int8_t* y) {
    requantize_row(x, multiplier, shift, rows, channels, multipliers, shifts, y, intaglio::clip8);
}

// The same with y: int32 [rows, channels] holding 16-bit values.
extern "C" __global__ void __launch_bounds__(THREADS) requantize_16(
    const int32_t* x, const int32_t* multiplier, const int32_t* shift,
    int32_t rows, int32_t channels, int32_t multipliers, int32_t shifts, int32_t* y) {
    requantize_row(x, multiplier, shift, rows, channels, multipliers, shifts, y, intaglio::clip16);
}
