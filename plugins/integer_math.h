// The integer arithmetic of the integer operators, for one element or one row: compiled into the CPU and the CUDA
// kernels, and equal to integer_math.py to the bit. That file derives the constants and every range; here they are only
// repeated in C++. Functions are static: each translation unit, compiled for its own instruction set, has its own.
#pragma once

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define INTAGLIO_INLINE static __device__ __forceinline__
#else
#define INTAGLIO_INLINE static inline
#endif

namespace intaglio {

// --- dyadic requantisation ------------------------------------------------------------------------------------------

// round(value / 2^shift), halves up; |value| + 2^(shift-1) < 2^63, shift in 0..62.
INTAGLIO_INLINE int64_t round_shift(int64_t value, int32_t shift) {
    return shift > 0 ? (value + (int64_t(1) << (shift - 1))) >> shift : value;
}

// round(x·multiplier / 2^shift) of any int32 x and multiplier.
INTAGLIO_INLINE int64_t requantize(int32_t x, int32_t multiplier, int32_t shift) {
    return round_shift(int64_t(x) * multiplier, shift);
}

// round((x·x_multiplier + y·y_multiplier) / 2^shift) of multipliers below 2^30.
INTAGLIO_INLINE int64_t scaled_sum(int32_t x, int32_t x_multiplier, int32_t y, int32_t y_multiplier, int32_t shift) {
    return round_shift(int64_t(x) * x_multiplier + int64_t(y) * y_multiplier, shift);
}

INTAGLIO_INLINE int32_t clip(int64_t value, int32_t low, int32_t high) {
    return value < low ? low : value > high ? high : int32_t(value);
}
INTAGLIO_INLINE int32_t clip(int32_t value, int32_t low, int32_t high) {  // by comparisons of 32 bits
    return value < low ? low : value > high ? high : value;
}

INTAGLIO_INLINE int32_t clip8(int64_t value) { return clip(value, -128, 127); }
INTAGLIO_INLINE int32_t clip16(int64_t value) { return clip(value, -32768, 32767); }

// round(a·b / 2^15) of two 16-bit values.
INTAGLIO_INLINE int32_t multiply_q15(int32_t a, int32_t b) { return (a * b + (1 << 14)) >> 15; }

// --- i-GELU ---------------------------------------------------------------------------------------------------------

struct GeluConstants {
    int32_t multiplier, shift;          // x -> 16 bits at the inner scale
    int32_t saturation;                 // where h reaches 0, at the inner scale
    int32_t normalize;                  // left shift that brings saturation - |x| to 15 bits
    int32_t square_shift;               // ... its square
    int32_t coefficient;                // from the square's square in Q15 to h in Q13
    int32_t out_multiplier, out_shift;  // inner scale -> out_scale
};

// gelu of a 16-bit value at the inner scale, at the same scale.
INTAGLIO_INLINE int32_t gelu(int32_t v, const GeluConstants& constants) {
    const int32_t magnitude = v < 0 ? -v : v;
    int32_t distance = constants.saturation - magnitude;
    distance = (distance < 0 ? 0 : distance) << constants.normalize;
    const int32_t square = multiply_q15(distance, distance) << constants.square_shift;
    const int32_t h = multiply_q15(multiply_q15(square, square), constants.coefficient);
    const int32_t part = multiply_q15(v, 4 * h);
    return v >= 0 ? v - part : part;
}

// --- i-exp ----------------------------------------------------------------------------------------------------------

constexpr int32_t EXP_FRACTION = 11;  // bits of an octave's fraction
constexpr int32_t EXP_CENTRE = 31974;
constexpr int32_t EXP_CURVE = 22576;
constexpr int32_t EXP_FLOOR = 11272;
constexpr int32_t EXP_ONE = 32767;

struct ExpConstants {
    uint32_t limit;       // distance at which the exponential is surely 0
    int32_t left, right;  // shifts that bring the distance to 16 bits
    uint32_t multiplier;  // 16 bits
};

// exp(-distance·scale) in Q15.
INTAGLIO_INLINE int32_t exp(uint32_t distance, const ExpConstants& constants) {
    if (distance > constants.limit) distance = constants.limit;
    uint32_t narrow = ((distance << constants.left) + ((1u << constants.right) - 1)) >> constants.right;
    if (narrow > 65535) narrow = 65535;
    const uint32_t t = (narrow * constants.multiplier) >> 16;
    const int32_t fraction = int32_t(t & ((1u << EXP_FRACTION) - 1));
    const int32_t from_centre = EXP_CENTRE - (fraction << (14 - EXP_FRACTION));
    int32_t mantissa = multiply_q15(multiply_q15(from_centre, from_centre), EXP_CURVE) + EXP_FLOOR;
    mantissa = mantissa < EXP_ONE ? mantissa : EXP_ONE;
    return (((2 * mantissa) >> (t >> EXP_FRACTION)) + 1) >> 1;
}

// --- i-softmax's divisions ------------------------------------------------------------------------------------------

constexpr int32_t MAX_ROW = 65535;  // entries of a softmax row
constexpr int32_t RECIPROCAL = 45;
constexpr int32_t AVERAGE_FRACTION = 8;

// The factor for the exponentials of a row with this total; multiplier represents 1 / out_scale.
INTAGLIO_INLINE int64_t softmax_factor(int32_t multiplier, int64_t total) {
    return (int64_t(multiplier) << 31) / (total > 1 ? total : 1);
}

INTAGLIO_INLINE int32_t average_factor(int64_t total) {
    return int32_t((int64_t(1) << RECIPROCAL) / (total > 1 ? total : 1));
}

// The weighted average in Q8 from the sums of the weights' high and low bytes times the values.
INTAGLIO_INLINE int32_t weighted_average(int32_t high, int32_t low, int32_t factor) {
    const int64_t sum = int64_t(high) * 256 + low;
    return clip16(round_shift(sum * factor, RECIPROCAL - AVERAGE_FRACTION));
}

// --- i-LayerNorm ----------------------------------------------------------------------------------------------------

struct LayerNormConstants {
    int32_t channels, fraction;
    uint32_t root;  // √channels in Q(16 + fraction)
    int32_t epsilon, epsilon_exponent;
    int32_t weight_multiplier, weight_shift;
    int32_t bias_multiplier, bias_shift;
    int32_t out_multiplier, out_shift;
};

INTAGLIO_INLINE int32_t bit_length(uint64_t value) {
    int32_t bits = 0;
    for (int32_t step = 32; step > 0; step >>= 1) {
        if (value >> step) {
            value >>= step;
            bits += step;
        }
    }
    return bits + int32_t(value);
}

// floor(√n) by Newton's method from above.
INTAGLIO_INLINE uint32_t integer_sqrt(uint32_t n) {
    if (n == 0) return 0;
    uint64_t x = uint64_t(1) << ((bit_length(n) + 1) / 2);
    for (;;) {
        const uint64_t following = (x + uint32_t(n) / uint32_t(x)) >> 1;
        if (following >= x) return uint32_t(x);
        x = following;
    }
}

// How a row's deviations are normalised, once its largest deviation and then its sum of squares are known.
struct RowScale {
    int32_t shift;       // deviation -> 16 bits: right if positive, left if negative
    int32_t factor;      // 15 or 16 bits; 0 for a row without deviation
    int32_t half_shift;  // one less than the final shift, 14..31
};

INTAGLIO_INLINE int32_t deviation_shift(int64_t largest) { return bit_length(uint64_t(largest)) - 15; }

INTAGLIO_INLINE int32_t shifted_deviation(int64_t deviation, int32_t shift) {
    return clip(shift > 0 ? round_shift(deviation, shift) : deviation * (int64_t(1) << -shift), -32767, 32767);
}

INTAGLIO_INLINE int64_t epsilon_squares(int32_t shift, const LayerNormConstants& constants) {
    const int32_t exponent = constants.epsilon_exponent - 2 * shift;
    if (exponent >= 0) return int64_t(constants.epsilon) << (exponent < 31 ? exponent : 31);
    return int64_t(constants.epsilon) >> (exponent > -62 ? -exponent : 62);
}

// `largest` is the largest |channels·x - sum|, `squares` the sum of the squares of the shifted deviations.
INTAGLIO_INLINE RowScale row_scale(int64_t largest, int64_t squares, const LayerNormConstants& constants) {
    RowScale row;
    row.shift = deviation_shift(largest);
    row.factor = 0;
    row.half_shift = 15;
    if (largest == 0) return row;
    const uint64_t total = uint64_t(squares + epsilon_squares(row.shift, constants));
    const int32_t even = (bit_length(total) - 31) & ~1;
    const uint32_t root = integer_sqrt(uint32_t(even > 0 ? total >> even : total << -even));
    row.factor = int32_t(constants.root / root);
    row.half_shift = 15 + even / 2;
    return row;
}

// The normalised value in Q(fraction) of one shifted deviation.
INTAGLIO_INLINE int32_t normalized(int32_t deviation, const RowScale& row) {
    return clip((((deviation * row.factor) >> row.half_shift) + 1) >> 1, -32767, 32767);
}

// One channel's share of the bias at wide_scale.
INTAGLIO_INLINE int32_t layer_norm_bias(int32_t bias, const LayerNormConstants& constants) {
    return clip(requantize(bias, constants.bias_multiplier, constants.bias_shift), -(1 << 30), 1 << 30);
}

// The 16-bit value at wide_scale of one normalised value; `bias` from layer_norm_bias.
INTAGLIO_INLINE int32_t layer_norm_wide(int32_t normal, int32_t weight, int32_t bias, const LayerNormConstants& constants) {
    const int64_t weighted = int64_t(normal) * weight * constants.weight_multiplier;
    return clip16(int64_t(clip(round_shift(weighted, constants.weight_shift), -(1 << 30), 1 << 30)) + bias);
}

}  // namespace intaglio
