// IntLayerNorm: i-LayerNorm of int32 rows, as int8 and with 16 bits. A warp takes one row and reads it four times: for
// the sum, the largest deviation, the sum of squares, and the output.
#include "cuda/epilogue.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128;

__device__ __forceinline__ void layer_norm_row(
    const int32_t* __restrict__ x, const int32_t* __restrict__ weight, const int32_t* __restrict__ bias,
    const epilogue::Factors& out, int32_t rows, const intaglio::LayerNormConstants& constants,
    int8_t* __restrict__ y, int32_t* __restrict__ wide) {
    const int32_t row = blockIdx.x * (THREADS / warp::LANES) + threadIdx.x / warp::LANES;
    if (row >= rows) return;  // all lanes together
    const int32_t lane = threadIdx.x % warp::LANES, channels = constants.channels;
    const int64_t start = int64_t(row) * channels;
    x += start;
    int64_t sum = 0, largest = 0, squares = 0;
    for (int32_t i = lane; i < channels; i += warp::LANES) sum += x[i];
    sum = warp::sum(sum);
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int64_t deviation = int64_t(channels) * x[i] - sum;
        largest = max(largest, deviation < 0 ? -deviation : deviation);
    }
    largest = warp::largest(largest);
    const int32_t shift = intaglio::deviation_shift(largest);
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int32_t deviation = intaglio::shifted_deviation(int64_t(channels) * x[i] - sum, shift);
        squares += int64_t(deviation) * deviation;
    }
    const intaglio::RowScale scale = intaglio::row_scale(largest, warp::sum(squares), constants);
    const epilogue::Factor one = {constants.out_multiplier, constants.out_shift};
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int32_t deviation = intaglio::shifted_deviation(int64_t(channels) * x[i] - sum, shift);
        const int32_t normal = intaglio::normalized(deviation, scale);
        const int32_t value = intaglio::layer_norm_wide(normal, weight[i], intaglio::layer_norm_bias(bias[i], constants), constants);
        wide[start + i] = value;
        y[start + i] = int8_t(intaglio::clip8(epilogue::apply(value, out.multiplier ? epilogue::factor_of(out, i) : one)));
    }
}

}  // namespace

// x: int32 [rows, channels]; weight, bias: int32 [channels]; from channels on i-LayerNorm's constants;
// y: int8 [rows, channels]; wide: int32 [rows, channels] holding 16-bit values. Grid: (rows / 4).
extern "C" __global__ void __launch_bounds__(THREADS) int_layer_norm(
    const int32_t* x, const int32_t* weight, const int32_t* bias, int32_t rows,
    int32_t channels, int32_t fraction, int32_t root, int32_t epsilon, int32_t epsilon_exponent, int32_t weight_multiplier,
    int32_t weight_shift, int32_t bias_multiplier, int32_t bias_shift, int32_t out_multiplier, int32_t out_shift,
    int8_t* y, int32_t* wide) {
    const intaglio::LayerNormConstants constants = {
        channels, fraction, uint32_t(root), epsilon, epsilon_exponent, weight_multiplier,
        weight_shift, bias_multiplier, bias_shift, out_multiplier, out_shift};
    layer_norm_row(x, weight, bias, {}, rows, constants, y, wide);
}

// The same with multiplier: int32 [multipliers] and shift: int32 [shifts], 1 or channels each, from wide to y.
extern "C" __global__ void __launch_bounds__(THREADS) int_layer_norm_channels(
    const int32_t* x, const int32_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift, int32_t rows,
    int32_t channels, int32_t fraction, int32_t root, int32_t epsilon, int32_t epsilon_exponent, int32_t weight_multiplier,
    int32_t weight_shift, int32_t bias_multiplier, int32_t bias_shift, int32_t multipliers, int32_t shifts,
    int8_t* y, int32_t* wide) {
    const intaglio::LayerNormConstants constants = {
        channels, fraction, uint32_t(root), epsilon, epsilon_exponent, weight_multiplier,
        weight_shift, bias_multiplier, bias_shift, 0, 0};
    layer_norm_row(x, weight, bias, {multiplier, shift, multipliers, shifts}, rows, constants, y, wide);
}
