// IntLayerNorm: i-LayerNorm of int32 rows, as int8 and with 16 bits. A warp takes one row. Up to 1024 channels, a multiple of
// four, of which it moves four together, it keeps the row in registers and reads it once, and what depends on the channel
// alone is computed once for the rows of a block. Any other row it reads three times: for the sum and the extremes, the sum
// of squares, and the output. Where there is a residual, the first reading adds it, and leaves the sum in `wide` for the
// others: each lane reads there what it wrote itself.
#include "cuda/epilogue.cuh"
#include "cuda/quad.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int BLOCKS = 4;  // of a multiprocessor: a launch bound, else the compiler saves registers for more
constexpr int MOST = 8 * quad::WARP;  // channels of a row in registers
constexpr int SHORT = 25;  // of 32 values with as many bits and a sign, the sum has 32 bits
constexpr int EXPONENT_BIAS = 1024;  // as in launch.py

// x unchanged.
struct Plain {
    static constexpr int BITS = 31;
    const int32_t* __restrict__ x;

    __device__ __forceinline__ bool is_aligned() const { return quad::is_aligned(x, quad::SIZE); }
    __device__ __forceinline__ Plain behind(int64_t elements) const { return {x + elements}; }
    __device__ __forceinline__ void load(int32_t i, int32_t (&values)[quad::SIZE]) const { quad::load(x + i, values); }
    __device__ __forceinline__ int32_t first(int64_t i) const { return x[i]; }
    __device__ __forceinline__ int32_t again(int64_t i) const { return x[i]; }
};

// x with a residual of int8 or int32, by the bytes of an element, and the factors of both.
struct WithResidual {
    static constexpr int BITS = 15;
    const int32_t* __restrict__ x;
    const int8_t* __restrict__ residual;
    int32_t bytes;
    rounding::Sum factors;
    int32_t* sums;

    __device__ __forceinline__ bool is_aligned() const {
        return quad::is_aligned(x, quad::SIZE) && reinterpret_cast<uint64_t>(residual) % (quad::SIZE * bytes) == 0;
    }
    __device__ __forceinline__ WithResidual behind(int64_t elements) const {
        return {x + elements, residual + elements * bytes, bytes, factors, sums};
    }
    __device__ __forceinline__ void load(int32_t i, int32_t (&values)[quad::SIZE]) const {
        int32_t others[quad::SIZE];
        quad::load(x + i, values);
        if (bytes == 1) quad::load(residual + i, others);
        else quad::load(reinterpret_cast<const int32_t*>(residual) + i, others);
#pragma unroll
        for (int j = 0; j < quad::SIZE; ++j) values[j] = factors.clip16(values[j], others[j]);
    }
    __device__ __forceinline__ int32_t first(int64_t i) const {
        const int32_t other = bytes == 1 ? residual[i] : reinterpret_cast<const int32_t*>(residual)[i];
        return sums[i] = factors.clip16(x[i], other);
    }
    __device__ __forceinline__ int32_t again(int64_t i) const { return sums[i]; }
};

// A row's deviations from its mean, times the channels, brought to 16 bits: channels·x - sum, over 2^shift, rounded. Those that
// the shift has too few bits for are multiplied, by the channels and the sum.
struct Deviations {
    int64_t added;  // half of 2^shift, less the sum
    int32_t channels;
    rounding::Shift shift;

    __device__ __forceinline__ Deviations(int64_t sum, int32_t channels, int32_t bits) : shift(max(bits, rounding::LEAST)) {
        const int32_t missing = bits < -14 ? 0 : rounding::missing(bits);  // no deviations: channels << 17 may overflow
        added = int64_t(uint64_t(shift.half) - (uint64_t(sum) << missing));
        this->channels = int32_t(uint32_t(channels) << missing);
    }
    // By the choice of shift, the largest of a row has 16 bits.
    __device__ __forceinline__ int32_t of(int32_t x) const {
        return rounding::clip_short(rounding::multiply_add(channels, x, added), shift, -32767, 32767);
    }
};

// From a normalised value to the 16-bit value at wide_scale.
struct Affine {
    rounding::Factor bias;
    int32_t weight_multiplier;
    rounding::Shift weight_shift;

    __device__ __forceinline__ explicit Affine(const intaglio::LayerNormConstants& constants)
        : bias(constants.bias_multiplier, constants.bias_shift), weight_multiplier(constants.weight_multiplier),
          weight_shift(constants.weight_shift) {
        weight_shift.hold();
    }
    // A channel's bias at wide_scale.
    __device__ __forceinline__ int32_t shifted(int32_t added) const {
        return rounding::clip(bias.product(added), bias.shift, -(1 << 30), 1 << 30);
    }
    __device__ __forceinline__ int32_t of(int32_t normal, int32_t weight, int32_t shifted) const {
        const int64_t product = rounding::multiply_add(normal, weight, 0);
        const int64_t scaled = rounding::multiply_add(product, weight_multiplier, weight_shift.half);
        const int32_t weighted = rounding::clip(scaled, weight_shift, -(1 << 30), 1 << 30);
        return max(shifted + min(weighted, 32767 - shifted), -32768);  // the sum of both alone may have 33 bits
    }
};

// What depends on the channel alone, for the rows of a block: the bias at wide_scale, and the factor from wide to y.
struct Channels {
    __align__(16) int32_t bias[MOST];
    __align__(16) int32_t multiplier[MOST];
    __align__(16) int32_t shift[MOST];  // less 1

    __device__ __forceinline__ void prepare(
        const int32_t* __restrict__ biases, const epilogue::Factors& out, const intaglio::LayerNormConstants& constants) {
        const Affine affine(constants);
        for (int32_t i = threadIdx.x; i < constants.channels; i += THREADS) {
            bias[i] = affine.shifted(biases[i]);
            if (!out.multiplier) continue;
            const rounding::ShortFactor factor = epilogue::factor_of<rounding::ShortFactor>(out, i);
            multiplier[i] = factor.multiplier;
            shift[i] = factor.shift.bits - 1;
        }
        __syncthreads();
    }
    // y of four channels from `wide`; with no half for each of them, the last bit of the shift rounds.
    __device__ __forceinline__ void narrow(int32_t channel, const int32_t (&wide)[quad::SIZE], int32_t (&y)[quad::SIZE]) const {
        int32_t multipliers[quad::SIZE], shifts[quad::SIZE];
        quad::load(multiplier + channel, multipliers);
        quad::load(shift + channel, shifts);
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i)
            y[i] = min(max((int32_t(rounding::multiply_add(wide[i], multipliers[i], 0) >> shifts[i]) + 1) >> 1, -128), 127);
    }
};

// The largest of all deviations, from the row's smallest and largest x.
__device__ __forceinline__ int64_t largest_deviation(int64_t sum, int32_t channels, int32_t least, int32_t most) {
    least = -1 - warp::largest(-1 - least);  // of all lanes; every int32 has a complement
    most = warp::largest(most);
    return max(int64_t(channels) * most - sum, sum - int64_t(channels) * least);
}

// Up to PARTS·128 channels, a multiple of four; all arrays are aligned. `x`, `y`, `wide`: the row.
template <int PARTS, class Source>
__device__ __forceinline__ void layer_norm_in_registers(
    const Source& x, const int32_t* __restrict__ weight, const Channels& shared, bool has_factors,
    const intaglio::LayerNormConstants& constants, int8_t* __restrict__ y, int32_t* wide) {
    const int32_t lane = int32_t(threadIdx.x) % warp::LANES * quad::SIZE, channels = constants.channels - lane;
    int32_t row[PARTS][quad::SIZE] = {};
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
        if (part * quad::WARP < channels) x.load(part * quad::WARP + lane, row[part]);
    int32_t least = -1 - warp::LOWEST, most = warp::LOWEST, short_sum = 0;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * quad::WARP >= channels) break;
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            short_sum = int32_t(uint32_t(short_sum) + uint32_t(row[part][i]));
            least = min(least, row[part][i]);
            most = max(most, row[part][i]);
        }
    }
    int64_t sum = short_sum, squares = 0;
    if (Source::BITS > SHORT && (least < -(1 << SHORT) || most > 1 << SHORT)) {  // more than 32 bits
        sum = 0;
#pragma unroll
        for (int part = 0; part < PARTS; ++part)  // zeros behind the last channel
            for (int i = 0; i < quad::SIZE; ++i) sum += row[part][i];
    }
    sum = warp::sum(sum);
    const int64_t largest = largest_deviation(sum, constants.channels, least, most);
    const Deviations deviations(sum, constants.channels, intaglio::deviation_shift(largest));
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * quad::WARP >= channels) break;
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            row[part][i] = deviations.of(row[part][i]);
            squares += int64_t(row[part][i]) * row[part][i];
        }
    }
    const intaglio::RowScale scale = intaglio::row_scale(largest, warp::sum(squares), constants);
    rounding::ShortFactor one(constants.out_multiplier, constants.out_shift);
    one.hold();
    const Affine affine(constants);
    weight += lane, y += lane, wide += lane;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
        if (part * quad::WARP >= channels) return;
        int32_t weights[quad::SIZE], biases[quad::SIZE], narrow[quad::SIZE];
        quad::load(weight + part * quad::WARP, weights);
        quad::load(shared.bias + part * quad::WARP + lane, biases);
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            row[part][i] = affine.of(intaglio::normalized(row[part][i], scale), weights[i], biases[i]);
            narrow[i] = one.clip8(row[part][i]);
        }
        if (has_factors) shared.narrow(part * quad::WARP + lane, row[part], narrow);
        quad::store(wide + part * quad::WARP, row[part]);
        quad::store(y + part * quad::WARP, narrow);
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
        const int32_t value = affine.of(normal, weight[i], affine.shifted(bias[i]));
        wide[start + i] = value;
        y[start + i] = int8_t((out.multiplier ? epilogue::factor_of(out, i) : one).clip8(value));
    }
}

template <class Source>
__device__ __forceinline__ void layer_norm(
    const Source& x, const int32_t* __restrict__ weight, const int32_t* __restrict__ bias,
    const epilogue::Factors& out, int32_t rows, const intaglio::LayerNormConstants& constants,
    int8_t* __restrict__ y, int32_t* wide) {
    __shared__ Channels shared;
    const int32_t row = blockIdx.x * (THREADS / warp::LANES) + threadIdx.x / warp::LANES, channels = constants.channels;
    const int64_t start = int64_t(row) * channels;
    const bool aligned = x.is_aligned() && quad::is_aligned(weight, channels) && quad::is_aligned(y, channels) &&
                         quad::is_aligned(wide, channels);
    const bool in_registers = aligned && channels <= MOST;
    if (in_registers) shared.prepare(bias, out, constants);
    if (row >= rows) return;  // all lanes together
    const bool has_factors = out.multiplier;
    if (!in_registers) layer_norm_of_long_row(x, start, weight, bias, out, constants, y, wide);
    else if (channels <= MOST / 2)
        layer_norm_in_registers<4>(x.behind(start), weight, shared, has_factors, constants, y + start, wide + start);
    else layer_norm_in_registers<8>(x.behind(start), weight, shared, has_factors, constants, y + start, wide + start);
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
    layer_norm(Plain{x}, weight, bias, {}, rows, constants, y, wide);
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
    layer_norm(Plain{x}, weight, bias, {multiplier, shift, multipliers, shifts}, rows, constants, y, wide);
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
    const WithResidual sum = {x, static_cast<const int8_t*>(residual), residual_bytes, {*x_multiplier, *residual_multiplier, *sum_shift}, wide};
    layer_norm(sum, weight, bias, {}, rows, constants, y, wide);
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
    const WithResidual sum = {x, static_cast<const int8_t*>(residual), residual_bytes, {*x_multiplier, *residual_multiplier, *sum_shift}, wide};
    layer_norm(sum, weight, bias, {multiplier, shift, multipliers, shifts}, rows, constants, y, wide);
}
