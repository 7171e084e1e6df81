// Distances and weights of tokens, for the CPU's and the GPU's kernels; reference.py says what they are.
#pragma once

#include "../../integer_math.h"

constexpr int TOKEN_FRACTION = 20;                          // bits of a distance within an octave
constexpr uint32_t TOKEN_FARTHEST = 63u << TOKEN_FRACTION;  // a float32, too

// A distance; that of NaN, which infinity times 0 is, and of infinity is the farthest.
INTAGLIO_INLINE uint32_t token_distance(float top, float score, float scale) {
    const float far = (top - score) * scale;
    return uint32_t(int32_t(far < float(TOKEN_FARTHEST) ? far : float(TOKEN_FARTHEST)));
}

// a·b + c, rounded once. Doubles hold the exact value for all that token_weight computes.
INTAGLIO_INLINE float token_fma(float a, float b, float c) {
#if defined(__CUDACC_RTC__)
    return fmaf(a, b, c);
#elif defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return float(double(a) * double(b) + double(c));
#endif
}

INTAGLIO_INLINE uint64_t token_weight(uint32_t distance) {
    constexpr float STEP = 1.0f / (1 << TOKEN_FRACTION);
    const float part = float(int32_t(distance & ((1u << TOKEN_FRACTION) - 1))) * STEP;
    float value = token_fma(-0.000943510851f, part, 0.00920217668f);
    value = token_fma(value, part, -0.0552940406f);
    value = token_fma(value, part, 0.240178898f);
    value = token_fma(value, part, -0.693143547f);
    value = token_fma(value, part, 1.0f);
    return uint64_t(uint32_t(int32_t(value * (1 << 24)))) << 16 >> (distance >> TOKEN_FRACTION);
}

// The largest distance whose weight is at least `weight`, at most 2^40.
INTAGLIO_INLINE uint32_t token_reach(uint64_t weight) {
    uint32_t near = 0, far = TOKEN_FARTHEST + 1;  // which is too far, unless the weight is 0
    while (far - near > 1) {
        const uint32_t middle = near + (far - near) / 2;
        if (token_weight(middle) >= weight) near = middle;
        else far = middle;
    }
    return near;
}

// A probability times 2^50, rounded down: a weight over the sum of all.
INTAGLIO_INLINE uint64_t token_probability(uint64_t weight, uint64_t sum) {
    return uint64_t(double(weight) * (double(uint64_t(1) << 50) / double(sum)));
}

// The part of a sum of weights that top-p asks for, at least 1.
INTAGLIO_INLINE uint64_t token_part(uint64_t sum, uint64_t top_p) {
    const uint64_t part = (sum >> 32) * top_p + ((sum & 0xffffffffu) * top_p >> 32);
    return part > 0 ? part : 1;
}
