// IntLayerNorm: i-LayerNorm of int32 rows, as int8 and with 16 bits. A warp takes one row. Up to 1024 channels, four
// of which it moves together, it keeps the row in registers and reads it once; any other row it reads three times: for the sum and the extremes, the sum of squares,
// and the output. Where there is a residual, the first reading adds it, and leaves the sum in `wide` for the others: each
// lane reads there what it wrote itself.
#include "cuda/epilogue.cuh"
#include "cuda/quad.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int BLOCKS = 4;  // of a multiprocessor: a launch bound, else the compiler saves registers for more
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
    int32_t bytes;
    rounding::Sum factors;
    int32_t* sums;

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
        for (int j = 0; j < quad::SIZE; ++j) values[j] = factors.clip16(values[j], others[j]);
    }
    __device__ __forceinline__ int32_t first(int64_t i) const {
        const int32_t other =
            bytes == 1 ? static_cast<const int8_t*>(residual)[i] : static_cast<const int32_t*>(residual)[i];
        return sums[i] = factors.clip16(x[i], other);
    }
    __device__ __forceinline__ int32_t again(int64_t i) const { return sums[i]; }
};

// A row's deviations from its mean, times the channels, brought to 16 bits.
struct Deviations {
    int64_t sum;
    int32_t channels, left;  // a shift to the left, where that to the right is too small
    rounding::Shift right;

    __device__ __forceinline__ Deviations(int64_t sum, int32_t channels, int32_t shift)
        : sum(sum), channels(channels), left(rounding::missing(shift)), right(max(shift, rounding::LEAST)) {}
    __device__ __forceinline__ int32_t of(int32_t x) const {
        const int64_t deviation = int64_t(channels) * x - sum;
        return rounding::clip(int64_t(uint64_t(deviation) << left) + right.half, right, -32767, 32767);
    }
};

// From a normalised value to the 16-bit value at wide_scale.
struct Affine {
    rounding::Factor bias;
    int32_t weight_multiplier;
    rounding::Shift weight_shift;

    __device__ __forceinline__ explicit Affine(const intaglio::LayerNormConstants& constants)
        : bias(constants.bias_multiplier, constants.bias_shift), weight_multiplier(constants.weight_multiplier),
          weight_shift(constants.weight_shift) {}
    __device__ __forceinline__ int32_t of(int32_t normal, int32_t weight, int32_t added) const {
        const int64_t product = int64_t(normal) * weight * weight_multiplier + weight_shift.half;
        const int32_t weighted = rounding::clip(product, weight_shift, -(1 << 30), 1 << 30);
        const int32_t shifted = rounding::clip(bias.product(added), bias.shift, -(1 << 30), 1 << 30);
        return shifted + min(max(weighted, -32768 - shifted), 32767 - shifted);  // their sum has more than 32 bits
    }
};

// The largest of all deviations, from the row's smallest and largest x.
__device__ __forceinline__ int64_t largest_deviation(int64_t sum, int32_t channels, int32_t least, int32_t most) {
    least = -1 - warp::largest(-1 - least);  // of all lanes; every int32 has a complement
    most = warp::largest(most);
    return max(int64_t(channels) * most - sum, sum - int64_t(channels) * least);
}

// Up to PARTS·128 channels, a multiple of four. `start`: of the row, in elements.
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
    int64_t sum = 0, squares = 0;
    int32_t least = -1 - warp::LOWEST, most = warp::LOWEST;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * quad::WARP + lane >= channels) break;
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            sum += row[part][i];
            least = min(least, row[part][i]);
            most = max(most, row[part][i]);
        }
    }
    sum = warp::sum(sum);
    const int64_t largest = largest_deviation(sum, channels, least, most);
    const Deviations deviations(sum, channels, intaglio::deviation_shift(largest));
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * quad::WARP + lane >= channels) break;
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            row[part][i] = deviations.of(row[part][i]);
            squares += int64_t(row[part][i]) * row[part][i];
        }
    }
    const intaglio::RowScale scale = intaglio::row_scale(largest, warp::sum(squares), constants);
    const rounding::Factor one(constants.out_multiplier, constants.out_shift);
    const Affine affine(constants);
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
            row[part][i] = affine.of(normal, weights[i], biases[i]);
            narrow[i] = (out.multiplier ? epilogue::factor_of(out, first + i) : one).clip8(row[part][i]);
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
    int64_t sum = 0, squares = 0;
    int32_t least = -1 - warp::LOWEST, most = warp::LOWEST;
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int32_t value = x.first(start + i);
        sum += value;
        least = min(least, value);
        most = max(most, value);
    }
    sum = warp::sum(sum);
    const int64_t largest = largest_deviation(sum, channels, least, most);
    const Deviations deviations(sum, channels, intaglio::deviation_shift(largest));
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int32_t deviation = deviations.of(x.again(start + i));
        squares += int64_t(deviation) * deviation;
    }
    const intaglio::RowScale scale = intaglio::row_scale(largest, warp::sum(squares), constants);
    const rounding::Factor one(constants.out_multiplier, constants.out_shift);
    const Affine affine(constants);
    for (int32_t i = lane; i < channels; i += warp::LANES) {
        const int32_t normal = intaglio::normalized(deviations.of(x.again(start + i)), scale);
        const int32_t value = affine.of(normal, weight[i], bias[i]);
        wide[start + i] = value;
        y[start + i] = int8_t((out.multiplier ? epilogue::factor_of(out, i) : one).clip8(value));
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
    if (channels % quad::SIZE) layer_norm_of_long_row(x, start, weight, bias, out, constants, y, wide);
    else if (channels <= 4 * quad::WARP) layer_norm_in_registers<4>(x, start, weight, bias, out, constants, y, wide);
    else if (channels <= 8 * quad::WARP) layer_norm_in_registers<8>(x, start, weight, bias, out, constants, y, wide);
    else layer_norm_of_long_row(x, start, weight, bias, out, constants, y, wide);
}

}  // namespace

// x: int32 [rows, channels]; weight, bias: int32 [channels]; from channels on i-LayerNorm's constants,
// of which root, up to 2^31, and epsilon's exponent, which may be negative, are moved into 0..2^31 - 1;
// y: int8 [rows, channels]; wide: int32 [rows, channels] holding 16-bit values. Grid: (rows / 4).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) int_layer_norm(
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
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) int_layer_norm_channels(
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
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) int_layer_norm_residual(
    const int32_t* x, const int32_t* weight, const int32_t* bias, const void* residual, const int32_t* x_multiplier,
    const int32_t* residual_multiplier, const int32_t* sum_shift, int32_t rows, int32_t residual_bytes,
    int32_t channels, int32_t fraction, int32_t root_less_1, int32_t epsilon, int32_t biased_exponent, int32_t weight_multiplier,
    int32_t weight_shift, int32_t bias_multiplier, int32_t bias_shift, int32_t out_multiplier, int32_t out_shift,
    int8_t* y, int32_t* wide) {
    const intaglio::LayerNormConstants constants = {
        channels, fraction, uint32_t(root_less_1) + 1, epsilon, biased_exponent - EXPONENT_BIAS, weight_multiplier,
        weight_shift, bias_multiplier, bias_shift, out_multiplier, out_shift};
    const WithResidual sum = {x, residual, residual_bytes, {*x_multiplier, *residual_multiplier, *sum_shift}, wide};
    layer_norm_row(sum, weight, bias, {}, rows, constants, y, wide);
}

// int_layer_norm_channels of that sum.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) int_layer_norm_residual_channels(
    const int32_t* x, const int32_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift,
    const void* residual, const int32_t* x_multiplier, const int32_t* residual_multiplier, const int32_t* sum_shift,
    int32_t rows, int32_t residual_bytes,
    int32_t channels, int32_t fraction, int32_t root_less_1, int32_t epsilon, int32_t biased_exponent, int32_t weight_multiplier,
    int32_t weight_shift, int32_t bias_multiplier, int32_t bias_shift, int32_t multipliers, int32_t shifts,
    int8_t* y, int32_t* wide) {
    const intaglio::LayerNormConstants constants = {
        channels, fraction, uint32_t(root_less_1) + 1, epsilon, biased_exponent - EXPONENT_BIAS, weight_multiplier,
        weight_shift, bias_multiplier, bias_shift, 0, 0};
    const WithResidual sum = {x, residual, residual_bytes, {*x_multiplier, *residual_multiplier, *sum_shift}, wide};
    layer_norm_row(sum, weight, bias, {multiplier, shift, multipliers, shifts}, rows, constants, y, wide);
}
