// Products of a panel of unpacked weight rows with rows of x: what the layers with compressed weights use for several
// tokens at once, when a weight is unpacked once for all of them.
//
// Weights and x lie in rows along K, which `stride` counts and is a multiple of the vectors; each step multiplies four
// rows of the panel with up to four of x, whose sums stay in registers.
#pragma once

#include <cstdint>

#include "plugins/simd_float.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int PANEL_ROWS = 4;

// sums[r][t] = panel[r]·x[t]; panel: [4][stride] float32, x: [TOKENS] rows that lie `x_stride` apart
template <int TOKENS>
static inline void float_panel(const float* panel, int64_t stride, const float* x, int64_t x_stride,
                               float (*sums)[PANEL_ROWS]) {
    F32 total[PANEL_ROWS][TOKENS];
    for (int r = 0; r < PANEL_ROWS; ++r) {
        for (int t = 0; t < TOKENS; ++t) total[r][t] = set_float(0);
    }
    for (int64_t k = 0; k < stride; k += FLOATS) {
        F32 w[PANEL_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < PANEL_ROWS; ++r) w[r] = load_float(panel + r * stride + k);
#pragma GCC unroll 4
        for (int t = 0; t < TOKENS; ++t) {
            const F32 value = load_float(x + t * x_stride + k);
#pragma GCC unroll 4
            for (int r = 0; r < PANEL_ROWS; ++r) total[r][t] = multiply_add(w[r], value, total[r][t]);
        }
    }
    for (int t = 0; t < TOKENS; ++t) {
        for (int r = 0; r < PANEL_ROWS; ++r) sums[t][r] = sum(total[r][t]);
    }
}

#if defined(__AVX512VNNI__)

// The sums of the lanes of four vectors.
static inline __m128i sums_of(__m512i a, __m512i b, __m512i c, __m512i d) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

// Keeps a value in its register: the compiler would read it from memory again with each instruction that takes it.
INTAGLIO_FLOAT void keep(__m512i& value) { asm("" : "+v"(value)); }

// sums[t][r] = panel[r]·x[t]; panel: [4][stride] uint8, x: [TOKENS] rows of int8 that lie `stride` apart
template <int TOKENS>
static inline void byte_panel(const uint8_t* panel, int64_t stride, const int8_t* x, int32_t (*sums)[PANEL_ROWS]) {
    __m512i total[PANEL_ROWS][TOKENS];
    for (int r = 0; r < PANEL_ROWS; ++r) {
        for (int t = 0; t < TOKENS; ++t) total[r][t] = _mm512_setzero_si512();
    }
    for (int64_t k = 0; k < stride; k += 64) {
        __m512i w[PANEL_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < PANEL_ROWS; ++r) {
            w[r] = _mm512_load_si512(panel + r * stride + k);
            keep(w[r]);
        }
#pragma GCC unroll 4
        for (int t = 0; t < TOKENS; ++t) {
            __m512i value = _mm512_load_si512(x + t * stride + k);
            keep(value);
#pragma GCC unroll 4
            for (int r = 0; r < PANEL_ROWS; ++r) total[r][t] = _mm512_dpbusd_epi32(total[r][t], w[r], value);
        }
    }
    for (int t = 0; t < TOKENS; ++t) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sums[t]),
                         sums_of(total[0][t], total[1][t], total[2][t], total[3][t]));
    }
}

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
