// IntGelu: i-GELU of int32 values as int8. A block takes one row, its threads the channels.
#include "cuda/epilogue.cuh"

namespace {

constexpr int THREADS = 128;

__device__ __forceinline__ void gelu_row(
    const int32_t* __restrict__ x, int32_t rows, int32_t channels, const intaglio::GeluConstants& constants,
    const epilogue::Factors& out, int8_t* __restrict__ y) {
    const epilogue::Factor scale = {constants.multiplier, constants.shift}, one = {constants.out_multiplier, constants.out_shift};
    if (int32_t(blockIdx.x) >= rows) return;
    const int64_t row = int64_t(blockIdx.x) * channels;
    for (int32_t channel = threadIdx.x; channel < channels; channel += THREADS) {
        const int32_t inner = intaglio::clip16(epilogue::apply(x[row + channel], scale));
        const epilogue::Factor factor = out.multiplier ? epilogue::factor_of(out, channel) : one;
        y[row + channel] = int8_t(intaglio::clip8(epilogue::apply(intaglio::gelu(inner, constants), factor)));
    }
}

}  // namespace

// x: int32 [rows, channels]; y: int8 [rows, channels]; from inner_multiplier on i-GELU's constants. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS) int_gelu(
    const int32_t* x, int32_t rows, int32_t channels, int32_t inner_multiplier, int32_t inner_shift, int32_t saturation,
    int32_t normalize, int32_t coefficient, int32_t out_multiplier, int32_t out_shift, int8_t* y) {
    gelu_row(x, rows, channels, {inner_multiplier, inner_shift, saturation, normalize, coefficient, out_multiplier, out_shift}, {}, y);
}

// The same with multiplier: int32 [multipliers] and shift: int32 [shifts], 1 or channels each, at the end.
extern "C" __global__ void __launch_bounds__(THREADS) int_gelu_channels(
    const int32_t* x, const int32_t* multiplier, const int32_t* shift, int32_t rows, int32_t channels, int32_t multipliers, int32_t shifts,
    int32_t inner_multiplier, int32_t inner_shift, int32_t saturation, int32_t normalize, int32_t coefficient, int8_t* y) {
    gelu_row(x, rows, channels, {inner_multiplier, inner_shift, saturation, normalize, coefficient, 0, 0},
             {multiplier, shift, multipliers, shifts}, y);
}
