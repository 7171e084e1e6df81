// Rows of float32 as integers of `PLANES` bytes and one factor each, for products with 8-bit weights in integers.
//
//     x[k] = scale·(plane[0][k] + 256·plane[1][k] + 65536·plane[2][k])
//
// with digits of -128..127, so that each plane is an operand of an int8 product. Two planes keep 16 bits of the row's
// largest |x|, three keep 24, which is what float32 keeps of it. Sums of such products are exact in integers, so a
// product's only error is half a step of x, at most largest/65278 or largest/16711422.
#pragma once

#include <cstdint>

namespace intaglio::INTAGLIO_ISA {
namespace {

struct FixedPointRow {
    double scale;
    double sum;  // of the integers: what a weight that is stored with 128 added takes away again
};

// The largest integer of `planes` balanced bytes.
constexpr int32_t largest_fixed(int planes) { return planes == 2 ? 127 * 257 : 127 * 65793; }

// x: [depth] float32; digits: [planes][stride] int8, zeros from depth to stride. NaN and infinity make the scale NaN.
template <int PLANES>
static void to_fixed_point(const float* x, int64_t depth, int64_t stride, int8_t* digits, FixedPointRow* row) {
    float largest = 0;
    bool finite = true;
    for (int64_t k = 0; k < depth; ++k) {
        const float magnitude = x[k] < 0 ? -x[k] : x[k];
        largest = magnitude > largest ? magnitude : largest;
        finite &= magnitude <= 3.4028235e38f;  // false for NaN too
    }
    const double step = double(largest) / largest_fixed(PLANES);
    const float factor = largest > 0 ? float(1 / step) : 0;
    int64_t sum = 0;
    if (!finite || factor > 3e38f) {  // denormal rows are taken as zeros: 1/step is no float32
        for (int64_t k = 0; k < PLANES * stride; ++k) digits[k] = 0;
        *row = {finite ? 0.0 : double(__builtin_nanf("")), 0};
        return;
    }
    constexpr int32_t LIMIT = largest_fixed(PLANES);
    for (int64_t k = 0; k < depth; ++k) {
        int32_t value = int32_t(__builtin_rintf(x[k] * factor));
        value = value > LIMIT ? LIMIT : value < -LIMIT ? -LIMIT : value;
        sum += value;
        for (int plane = 0; plane < PLANES; ++plane) {
            const int32_t digit = int8_t(value);
            digits[plane * stride + k] = int8_t(digit);
            value = (value - digit) >> 8;
        }
    }
    for (int plane = 0; plane < PLANES; ++plane) {
        for (int64_t k = depth; k < stride; ++k) digits[plane * stride + k] = 0;
    }
    *row = {step, double(sum)};
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
