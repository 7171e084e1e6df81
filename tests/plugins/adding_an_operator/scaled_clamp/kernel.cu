// ScaledClamp: x·factor, limited to low..high. A block takes one row, its threads the channels.
#include "integer_math.h"

namespace {

constexpr int THREADS = 128;

__device__ __forceinline__ float joined(int32_t low, int32_t high) { return __int_as_float(int32_t(uint32_t(high) << 16 | uint32_t(low))); }

__device__ __forceinline__ void clamp_row(
    const float* __restrict__ x, const float* __restrict__ factor, int32_t rows, int32_t channels, int32_t factors,
    float least, float most, float* __restrict__ y) {
    if (int32_t(blockIdx.x) >= rows) return;
    const int64_t row = int64_t(blockIdx.x) * channels;
    for (int32_t channel = threadIdx.x; channel < channels; channel += THREADS) {
        const float scaled = factor ? x[row + channel] * factor[factors == 1 ? 0 : channel] : x[row + channel];
        const float raised = scaled < least ? least : scaled;
        y[row + channel] = raised > most ? most : raised;
    }
}

}  // namespace

// x, y: float32 [rows, channels]; low, high: float32, their low and high 16 bits. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS) scaled_clamp(
    const float* x, int32_t rows, int32_t channels, int32_t low0, int32_t low1, int32_t high0, int32_t high1, float* y) {
    clamp_row(x, nullptr, rows, channels, 1, joined(low0, low1), joined(high0, high1), y);
}

// The same with factor: float32 [factors], 1 or channels.
extern "C" __global__ void __launch_bounds__(THREADS) scaled_clamp_factor(
    const float* x, const float* factor, int32_t rows, int32_t channels, int32_t factors, int32_t low0, int32_t low1,
    int32_t high0, int32_t high1, float* y) {
    clamp_row(x, factor, rows, channels, factors, joined(low0, low1), joined(high0, high1), y);
}
