// ScaledClamp: x·factor, limited to low..high. A block takes one row, its threads the channels.
#include "integer_math.h"

namespace {

constexpr int THREADS = 128;

__device__ __forceinline__ void clamp_row(
    const float* __restrict__ x, const float* __restrict__ factor, int32_t channels, int32_t factors, int32_t low,
    int32_t high, float* __restrict__ y) {
    const float least = __int_as_float(low), most = __int_as_float(high);
    const int64_t row = int64_t(blockIdx.x) * channels;
    for (int32_t channel = threadIdx.x; channel < channels; channel += THREADS) {
        const float scaled = factor ? x[row + channel] * factor[factors == 1 ? 0 : channel] : x[row + channel];
        const float raised = scaled < least ? least : scaled;
        y[row + channel] = raised > most ? most : raised;
    }
}

}  // namespace

// x, y: float32 [rows, channels]; low, high: the bits of float32. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS) scaled_clamp(
    const float* x, int32_t channels, int32_t low, int32_t high, float* y) {
    clamp_row(x, nullptr, channels, 1, low, high, y);
}

// The same with factor: float32 [factors], 1 or channels.
extern "C" __global__ void __launch_bounds__(THREADS) scaled_clamp_factor(
    const float* x, const float* factor, int32_t channels, int32_t factors, int32_t low, int32_t high, float* y) {
    clamp_row(x, factor, channels, factors, low, high, y);
}
