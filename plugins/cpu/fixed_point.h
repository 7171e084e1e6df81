// Rows of float32 as integers of `PLANES` bytes and one factor each, for products with 8-bit weights in integers.
//
//     x[k] = scale·(plane[0][k] + 256·plane[1][k] + 65536·plane[2][k])
//
// with digits of -128..127, so that each plane is an operand of an int8 product. Two planes keep 16 bits of the row's
// largest |x|, three keep 24, which is what float32 keeps of it. Sums of such products are exact in integers, so a
// product's only error is half a step of x, at most largest/65278 or largest/16711422. One plane keeps 8 bits, of the largest
// |x| of a part of the row, and has a factor for each.
#pragma once

#include <cstdint>

namespace intaglio::INTAGLIO_ISA {
namespace {

struct FixedPointRow {
    double scale;
    double sum;  // of the integers: what a weight that is stored with 128 added takes away again
};

// The largest integer of `planes` balanced bytes.
constexpr int32_t largest_fixed(int planes) { return planes == 1 ? 127 : planes == 2 ? 127 * 257 : 127 * 65793; }

constexpr int64_t ROUNDED = 64;  // integers at a time, in loops of which compilers make vectors

// Calls put(first, count, integers) for up to ROUNDED of x [depth] float32 at a time. NaN and infinity make the scale NaN, and all
// integers 0.
template <int PLANES, typename Put>
static void round_row(const float* x, int64_t depth, FixedPointRow* row, const Put& put) {
    int32_t largest_bits = 0;  // of |x|, which are in the same order as integers; above those of numbers lie infinity and NaN
    for (int64_t k = 0; k < depth; ++k) {
        int32_t bits;
        __builtin_memcpy(&bits, x + k, sizeof bits);
        bits &= 0x7fffffff;
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    const bool finite = largest_bits < 0x7f800000;
    float largest;
    __builtin_memcpy(&largest, &largest_bits, sizeof largest);
    const double step = double(largest) / largest_fixed(PLANES);
    const float factor = finite && largest > 0 ? float(1 / step) : 0;
    const bool denormal = factor > 3e38f;  // taken as zeros: 1/step is no float32
    constexpr int32_t LIMIT = largest_fixed(PLANES);
    int64_t sum = 0;
    for (int64_t first = 0; first < depth; first += ROUNDED) {
        const int64_t count = depth - first < ROUNDED ? depth - first : ROUNDED;
        int32_t values[ROUNDED], total = 0;
        if (!finite || denormal) {
            __builtin_memset(values, 0, sizeof values);
        } else {
            for (int64_t i = 0; i < count; ++i) {
                int32_t value = int32_t(__builtin_rintf(x[first + i] * factor));
                value = value > LIMIT ? LIMIT : value < -LIMIT ? -LIMIT : value;
                total += value;
                values[i] = value;
            }
        }
        sum += total;
        put(first, count, values);
    }
    *row = finite ? FixedPointRow{denormal ? 0.0 : step, double(sum)} : FixedPointRow{double(__builtin_nanf("")), 0};
}

// x: [depth] float32; digits: [planes][stride] int8, zeros from depth to stride.
template <int PLANES>
static void to_fixed_point(const float* x, int64_t depth, int64_t stride, int8_t* digits, FixedPointRow* row) {
    round_row<PLANES>(x, depth, row, [=](int64_t first, int64_t count, int32_t* values) {
        for (int plane = 0; plane < PLANES; ++plane) {
            int8_t* const target = digits + plane * stride + first;
            for (int64_t i = 0; i < count; ++i) {
                target[i] = int8_t(values[i]);
                values[i] = (values[i] - target[i]) >> 8;
            }
        }
    });
    for (int plane = 0; plane < PLANES; ++plane) {
        for (int64_t k = depth; k < stride; ++k) digits[plane * stride + k] = 0;
    }
}

// words: [stride] int16, of each PERIOD of x the even ones, then the odd ones, as bytes of weights are widened; zeros from depth to
// stride, a multiple of PERIOD.
template <int PERIOD>
[[maybe_unused]] static void to_words(const float* x, int64_t depth, int64_t stride, int16_t* words, FixedPointRow* row) {
    round_row<2>(x, depth, row, [=](int64_t first, int64_t count, int32_t* values) {
        for (int64_t i = count; i % PERIOD != 0; ++i) values[i] = 0;
        for (int64_t i = 0; i < count; i += PERIOD) {
            for (int64_t k = 0; k < PERIOD; ++k)
                words[first + i + k / 2 + k % 2 * (PERIOD / 2)] = int16_t(values[i + k]);
        }
    });
    for (int64_t k = (depth + PERIOD - 1) / PERIOD * PERIOD; k < stride; ++k) words[k] = 0;
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
