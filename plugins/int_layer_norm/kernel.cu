// IntLayerNorm: i-LayerNorm of int32 rows, as int8 and with 16 bits. A warp takes one row. Up to 1024 channels it keeps the row
// in registers and reads it once; a longer one it reads four times: for the sum, the largest deviation, the sum of
// squares, and the output. Where there is a residual, the first reading adds it, and leaves the sum in `wide` for the
// others: each lane reads there what it wrote itself.
#include "cuda/epilogue.cuh"
#include "cuda/quad.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int EXPONENT_BIAS = 1024;  // as in launch.py

// x unchanged.
struct Plain {
    const int32_t* __restrict__ x;

    __device__ __forceinline__ void load(int64_t i, int32_t count, int32_t length, int32_t (&values)[quad::SIZE]) const {
        quad::load(x + i, count, quad::is_aligned(x, length), values);
    }
    __device__ __forceinline__ int32_t first(int64_t i) const { return x[i]; }
    __device__ __forceinline__ int32_t again(int64_t i) const { return x[i]; }
};

// x with a residual of int8 or int32, by the bytes of an element, and the factors of both.
struct WithResidual {
    const int32_t* __restrict__ x;
    const void* __restrict__ residual;
    int32_t bytes, x_multiplier, multiplier, shift;
    int32_t* sums;

    __device__ __forceinline__ int32_t sum(int32_t value, int32_t other) const {
        return intaglio::clip16(intaglio::scaled_sum(value, x_multiplier, other, multiplier, shift));
    }
    __device__ __forceinline__ void load(int64_t i, int32_t count, int32_t length, int32_t (&values)[quad::SIZE]) const {
        int32_t others[quad::SIZE];
        quad::load(x + i, count, quad::is_aligned(x, length), values);
        if (bytes == 1) {
            const int8_t* from = static_cast<const int8_t*>(residual);
            quad::load(from + i, count, quad::is_aligned(from, length), others);
        } else {
            const int32_t* from = static_cast<const int32_t*>(residual);
            quad::load(from + i, count, quad::is_aligned(from, length), others);
        }
#pragma unroll
        for (int j = 0; j < quad::SIZE; ++j) values[j] = sum(values[j], others[j]);
    }
    __device__ __forceinline__ int32_t first(int64_t i) const {
        const int32_t other =
            bytes == 1 ? static_cast<const int8_t*>(residual)[i] : static_cast<const int32_t*>(residual)[i];
        return sums[i] = sum(x[i], other);
    }
    __device__ __forceinline__ int32_t again(int64_t i) const { return sums[i]; }
};

// Up to PARTS·128 channels. `start`: of the row, in elements.
template <int PARTS, class Source>
__device__ __forceinline__ void layer_norm_in_registers(
    const Source& x, int64_t start, const int32_t* __restrict__ weight, const int32_t* __restrict__ bias,
    const epilogue::Factors& out, const intaglio::LayerNormConstants& constants, int8_t* __restrict__ y, int32_t* wide) {
    const int32_t lane = int32_t(threadIdx.x) % warp::LANES * quad::SIZE, channels = constants.channels;
    int32_t row[PARTS][quad::SIZE] = {};
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int32_t first = part * quad::WARP + lane;
        if (first < channels) x.load(start + first, channels - first, channels, row[part]);
    }
    int64_t sum = 0, largest = 0, squares = 0;
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i)
            if (part * quad::WARP + lane + i < channels) sum += row[part][i];
    sum = warp::sum(sum);
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            if (part * quad::WARP + lane + i >= channels) continue;
            const int64_t deviation = int64_t(channels) * row[part][i] - sum;
            largest = max(largest, deviation < 0 ? -deviation : deviation);
        }
    largest = warp::largest(largest);
    const int32_t shift = intaglio::deviation_shift(largest);
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            if (part * quad::WARP + lane + i >= channels) continue;
            row[part][i] = intaglio::shifted_deviation(int64_t(channels) * row[part][i] - sum, shift);
            squares += int64_t(row[part][i]) * row[part][i];
        }
    const intaglio::RowScale scale = intaglio::row_scale(largest, warp::sum(squares), constants);
    const epilogue::Factor one = {constants.out_multiplier, constants.out_shift};
    const bool weight_aligned = quad::is_aligned(weight, channels), bias_aligned = quad::is_aligned(bias, channels);
    const bool y_aligned = quad::is_aligned(y, channels), wide_aligned = quad::is_aligned(wide, channels);
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        const int32_t first = part * quad::WARP + lane, count = channels - first;
        if (count <= 0) return;
        int32_t weights[quad::SIZE], biases[quad::SIZE], narrow[quad::SIZE];
        quad::load(weight + first, count, weight_aligned, weights);
        quad::load(bias + first, count, bias_aligned, biases);
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            const int32_t normal = intaglio::normalized(row[part][i], scale);
            row[part][i] = intaglio::layer_norm_wide(normal, weights[i], intaglio::layer_norm_bias(biases[i], constants), constants);
            const epilogue::Factor factor = out.multiplier ? epilogue::factor_of(out, i < count ? first + i : first) : one;
            narrow[i] = intaglio::clip8(epilogue::apply(row[part][i], factor));
        }
        quad::store(wide + start + first, count, wide_aligned, row[part]);
        quad::store(y + start + first, count, y_aligned, narrow);
    }
}

// Any number of channels.
template <class Source>
__device__ __forceinline__ void layer_norm_of_long_row(
    const Source& x, int64_t start, const int32_t* __restrict__ weight, const int32_t* __restrict__ bias,
    const epilogue::Factors& out, const intaglio::LayerNormConstants& constants, int8_t* __restrict__ y, int32_t* wide) {
    const int32_t lane = threadIdx.x % warp::LANES, channels = constants.channels;
    int64_t sum = 0, largest = 0, squares = 0;
    for (int32_t i = lane; i < channels; i += warp::LANES) sum += x.first(start + i);
    sum = warp::sum(sum);
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int64_t deviation = int64_t(channels) * x.again(start + i) - sum;
        largest = max(largest, deviation < 0 ? -deviation : deviation);
    }
    largest = warp::largest(largest);
    const int32_t shift = intaglio::deviation_shift(largest);
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int32_t deviation = intaglio::shifted_deviation(int64_t(channels) * x.again(start + i) - sum, shift);
        squares += int64_t(deviation) * deviation;
    }
    const intaglio::RowScale scale = intaglio::row_scale(largest, warp::sum(squares), constants);
    const epilogue::Factor one = {constants.out_multiplier, constants.out_shift};
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int32_t deviation = intaglio::shifted_deviation(int64_t(channels) * x.again(start + i) - sum, shift);
        const int32_t normal = intaglio::normalized(deviation, scale);
        const int32_t value = intaglio::layer_norm_wide(normal, weight[i], intaglio::layer_norm_bias(bias[i], constants), constants);
        wide[start + i] = value;
        y[start + i] = int8_t(intaglio::clip8(epilogue::apply(value, out.multiplier ? epilogue::factor_of(out, i) : one)));
    }
}

template <class Source>
__device__ __forceinline__ void layer_norm_row(
    const Source& x, const int32_t* __restrict__ weight, const int32_t* __restrict__ bias,
    const epilogue::Factors& out, int32_t rows, const intaglio::LayerNormConstants& constants,
    int8_t* __restrict__ y, int32_t* wide) {
    const int32_t row = blockIdx.x * (THREADS / warp::LANES) + threadIdx.x / warp::LANES, channels = constants.channels;
    if (row >= rows) return;  // all lanes together
    const int64_t start = int64_t(row) * channels;
    if (channels <= 4 * quad::WARP) layer_norm_in_registers<4>(x, start, weight, bias, out, constants, y, wide);
    else if (channels <= 8 * quad::WARP) layer_norm_in_registers<8>(x, start, weight, bias, out, constants, y, wide);
    else layer_norm_of_long_row(x, start, weight, bias, out, constants, y, wide);
}

}  // namespace

// x: int32 [rows, channels]; weight, bias: int32 [channels]; from channels on i-LayerNorm's constants,
// of which root, up to 2^31, and epsilon's exponent, which may be negative, are moved into 0..2^31 - 1;
// y: int8 [rows, channels]; wide: int32 [rows, channels] holding 16-bit values. Grid: (rows / 4).
extern "C" __global__ void __launch_bounds__(THREADS) int_layer_norm(
    const int32_t* x, const int32_t* weight, const int32_t* bias, int32_t rows,
    int32_t channels, int32_t fraction, int32_t root_less_1, int32_t epsilon, int32_t biased_exponent, int32_t weight_multiplier,
    int32_t weight_shift, int32_t bias_multiplier, int32_t bias_shift, int32_t out_multiplier, int32_t out_shift,
    int8_t* y, int32_t* wide) {
    const intaglio::LayerNormConstants constants = {
        channels, fraction, uint32_t(root_less_1) + 1, epsilon, biased_exponent - EXPONENT_BIAS, weight_multiplier,
        weight_shift, bias_multiplier, bias_shift, out_multiplier, out_shift};
    layer_norm_row(Plain{x}, weight, bias, {}, rows, constants, y, wide);
}

// The same with multiplier: int32 [multipliers] and shift: int32 [shifts], 1 or channels each, from wide to y.
extern "C" __global__ void __launch_bounds__(THREADS) int_layer_norm_channels(
    const int32_t* x, const int32_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift, int32_t rows,
    int32_t channels, int32_t fraction, int32_t root_less_1, int32_t epsilon, int32_t biased_exponent, int32_t weight_multiplier,
    int32_t weight_shift, int32_t bias_multiplier, int32_t bias_shift, int32_t multipliers, int32_t shifts,
    int8_t* y, int32_t* wide) {
    const intaglio::LayerNormConstants constants = {
        channels, fraction, uint32_t(root_less_1) + 1, epsilon, biased_exponent - EXPONENT_BIAS, weight_multiplier,
        weight_shift, bias_multiplier, bias_shift, 0, 0};
    layer_norm_row(Plain{x}, weight, bias, {multiplier, shift, multipliers, shifts}, rows, constants, y, wide);
}

// int_layer_norm of the sum with residual: int8 or int32 [rows, channels] by the bytes of an element; x_multiplier,
// residual_multiplier, sum_shift: int32 [1].
extern "C" __global__ void __launch_bounds__(THREADS) int_layer_norm_residual(
    const int32_t* x, const int32_t* weight, const int32_t* bias, const void* residual, const int32_t* x_multiplier,
    const int32_t* residual_multiplier, const int32_t* sum_shift, int32_t rows, int32_t residual_bytes,
    int32_t channels, int32_t fraction, int32_t root_less_1, int32_t epsilon, int32_t biased_exponent, int32_t weight_multiplier,
    int32_t weight_shift, int32_t bias_multiplier, int32_t bias_shift, int32_t out_multiplier, int32_t out_shift,
    int8_t* y, int32_t* wide) {
    const intaglio::LayerNormConstants constants = {
        channels, fraction, uint32_t(root_less_1) + 1, epsilon, biased_exponent - EXPONENT_BIAS, weight_multiplier,
        weight_shift, bias_multiplier, bias_shift, out_multiplier, out_shift};
    const WithResidual sum = {x, residual, residual_bytes, *x_multiplier, *residual_multiplier, *sum_shift, wide};
    layer_norm_row(sum, weight, bias, {}, rows, constants, y, wide);
}

// int_layer_norm_channels of that sum.
extern "C" __global__ void __launch_bounds__(THREADS) int_layer_norm_residual_channels(
    const int32_t* x, const int32_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift,
    const void* residual, const int32_t* x_multiplier, const int32_t* residual_multiplier, const int32_t* sum_shift,
    int32_t rows, int32_t residual_bytes,
    int32_t channels, int32_t fraction, int32_t root_less_1, int32_t epsilon, int32_t biased_exponent, int32_t weight_multiplier,
    int32_t weight_shift, int32_t bias_multiplier, int32_t bias_shift, int32_t multipliers, int32_t shifts,
    int8_t* y, int32_t* wide) {
    const intaglio::LayerNormConstants constants = {
        channels, fraction, uint32_t(root_less_1) + 1, epsilon, biased_exponent - EXPONENT_BIAS, weight_multiplier,
        weight_shift, bias_multiplier, bias_shift, 0, 0};
    const WithResidual sum = {x, residual, residual_bytes, *x_multiplier, *residual_multiplier, *sum_shift, wide};
    layer_norm_row(sum, weight, bias, {multiplier, shift, multipliers, shifts}, rows, constants, y, wide);
}
