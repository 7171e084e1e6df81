// Vectors of float32 for the kernels that compute in floating point, on the instruction sets of plugins/cpu/isa.h.
//
//     FLOATS                        lanes of an F32: 4 (portable), 8 (avx2) or 16 (avx512 and later)
//     load_float(p), store_float(p, v), set_float(x)   no alignment needed
//     + - *                         lane by lane, of the compiler's
//     multiply_add(a, b, c)         a·b + c, rounded once where the processor can
//     max(a, b)                     b where either is not a number
//     sum(v), largest(v)            of the lanes
//     sums(v)                       of FLOATS vectors: lane i is the sum of v[i]
//     absolute(v), with_sign(v, w)  |v|; |v| with the signs of w
//     square_root(v)                rounded to the nearest
//     load_codes(p)                 FLOATS integers of 8 bits, as floats
//     load_halves(p, shift)         bits shift to shift + 3 of FLOATS bytes
//     load_float16(p)               FLOATS numbers of float16
//     float_of(bits)                one number, of these bits
//     exp(v)                        of values up to 0, within 2e-7 of it; 0 below -87, and no number of what is none
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INTAGLIO_FLOAT static inline __attribute__((always_inline))

namespace intaglio::INTAGLIO_ISA {
namespace {

#if defined(__AVX512F__)
using F32 = __m512;
constexpr int FLOATS = 16;
INTAGLIO_FLOAT F32 load_float(const float* p) { return _mm512_loadu_ps(p); }
INTAGLIO_FLOAT F32 set_float(float x) { return _mm512_set1_ps(x); }
INTAGLIO_FLOAT F32 multiply_add(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
INTAGLIO_FLOAT void store_float(float* p, F32 v) { _mm512_storeu_ps(p, v); }
INTAGLIO_FLOAT F32 square_root(F32 v) { return _mm512_sqrt_ps(v); }
INTAGLIO_FLOAT F32 load_codes(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
INTAGLIO_FLOAT F32 load_halves(const uint8_t* p, int shift) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(bytes, unsigned(shift)), _mm512_set1_epi32(15)));
}
INTAGLIO_FLOAT F32 load_float16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
INTAGLIO_FLOAT F32 max(F32 a, F32 b) { return _mm512_max_ps(a, b); }
INTAGLIO_FLOAT float sum(F32 v) { return _mm512_reduce_add_ps(v); }
INTAGLIO_FLOAT float largest(F32 v) { return _mm512_reduce_max_ps(v); }
INTAGLIO_FLOAT F32 sums(const F32 (&v)[FLOATS]) {
    F32 fours[4];  // fours[i]: of each 128 bits the sums of v[4i] to v[4i + 3]
    for (int i = 0; i < 4; ++i) {
        const F32 first = _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i], v[4 * i + 1]), _mm512_unpackhi_ps(v[4 * i], v[4 * i + 1]));
        const F32 second =
            _mm512_add_ps(_mm512_unpacklo_ps(v[4 * i + 2], v[4 * i + 3]), _mm512_unpackhi_ps(v[4 * i + 2], v[4 * i + 3]));
        const __m512d a = _mm512_castps_pd(first), b = _mm512_castps_pd(second);
        fours[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    F32 halves[2];
    for (int i = 0; i < 2; ++i) {
        const F32 a = fours[2 * i], b = fours[2 * i + 1];
        halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
    }
    return _mm512_add_ps(_mm512_shuffle_f32x4(halves[0], halves[1], 0x88), _mm512_shuffle_f32x4(halves[0], halves[1], 0xDD));
}
#elif defined(__AVX2__)
using F32 = __m256;
constexpr int FLOATS = 8;
INTAGLIO_FLOAT F32 load_float(const float* p) { return _mm256_loadu_ps(p); }
INTAGLIO_FLOAT F32 set_float(float x) { return _mm256_set1_ps(x); }
INTAGLIO_FLOAT void store_float(float* p, F32 v) { _mm256_storeu_ps(p, v); }
INTAGLIO_FLOAT F32 square_root(F32 v) { return _mm256_sqrt_ps(v); }
INTAGLIO_FLOAT F32 load_codes(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
INTAGLIO_FLOAT F32 load_halves(const uint8_t* p, int shift) {
    const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(bytes, shift), _mm256_set1_epi32(15)));
}
INTAGLIO_FLOAT F32 load_float16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
INTAGLIO_FLOAT F32 max(F32 a, F32 b) { return _mm256_max_ps(a, b); }
INTAGLIO_FLOAT F32 multiply_add(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
INTAGLIO_FLOAT float sum(F32 v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
INTAGLIO_FLOAT float largest(F32 v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
INTAGLIO_FLOAT F32 sums(const F32 (&v)[FLOATS]) {
    F32 fours[2];  // fours[i]: of each 128 bits the sums of v[4i] to v[4i + 3]
    for (int i = 0; i < 2; ++i) {
        fours[i] = _mm256_hadd_ps(_mm256_hadd_ps(v[4 * i], v[4 * i + 1]), _mm256_hadd_ps(v[4 * i + 2], v[4 * i + 3]));
    }
    return _mm256_add_ps(_mm256_permute2f128_ps(fours[0], fours[1], 0x20), _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
}
#else
using F32 = float __attribute__((vector_size(16)));
constexpr int FLOATS = 4;
INTAGLIO_FLOAT F32 load_float(const float* p) {
    F32 v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
INTAGLIO_FLOAT void store_float(float* p, F32 v) { __builtin_memcpy(p, &v, sizeof v); }
INTAGLIO_FLOAT F32 set_float(float x) { return F32{x, x, x, x}; }
INTAGLIO_FLOAT F32 square_root(F32 v) {
    for (int i = 0; i < FLOATS; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
}
INTAGLIO_FLOAT F32 load_codes(const int8_t* p) { return F32{float(p[0]), float(p[1]), float(p[2]), float(p[3])}; }
INTAGLIO_FLOAT F32 load_halves(const uint8_t* p, int shift) {
    F32 v;
    for (int i = 0; i < FLOATS; ++i) v[i] = float(p[i] >> shift & 15);
    return v;
}
INTAGLIO_FLOAT F32 load_float16(const uint16_t* p) {
    F32 v;
    for (int i = 0; i < FLOATS; ++i) {
        const uint32_t rest = p[i] & 0x7fff;
        uint32_t bits = (rest << 13) + (uint32_t(127 - 15) << 23);
        if (rest >= 0x7c00) bits += uint32_t(255 - 31 - (127 - 15)) << 23;  // infinity and NaN
        float magnitude;
        __builtin_memcpy(&magnitude, &bits, sizeof bits);
        if (rest < 0x400) magnitude = float(rest) * 0x1p-24f;  // float16's denormals
        v[i] = p[i] & 0x8000 ? -magnitude : magnitude;
    }
    return v;
}
INTAGLIO_FLOAT F32 max(F32 a, F32 b) { return a > b ? a : b; }
INTAGLIO_FLOAT F32 multiply_add(F32 a, F32 b, F32 c) { return a * b + c; }
INTAGLIO_FLOAT float sum(F32 v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}
INTAGLIO_FLOAT float largest(F32 v) {
    const float even = v[0] > v[2] ? v[0] : v[2], odd = v[1] > v[3] ? v[1] : v[3];
    return even > odd ? even : odd;
}
INTAGLIO_FLOAT F32 sums(const F32 (&v)[FLOATS]) { return F32{sum(v[0]), sum(v[1]), sum(v[2]), sum(v[3])}; }
#endif

using FloatBits = int32_t __attribute__((vector_size(sizeof(F32))));

INTAGLIO_FLOAT float float_of(uint32_t bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}
INTAGLIO_FLOAT F32 absolute(F32 v) { return F32(FloatBits(v) & 0x7fffffff); }
INTAGLIO_FLOAT F32 with_sign(F32 v, F32 w) { return F32(FloatBits(absolute(v)) | (FloatBits(w) & int32_t(0x80000000))); }

INTAGLIO_FLOAT F32 exp(F32 x) {
    constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693145752f, LN2_LOW = 1.42860677e-6f, LEAST = -87;
    constexpr float WHOLE = 12582912;  // 1.5·2^23: adding it leaves an integer in the lowest bits
    const F32 given = x;
    x = max(x, set_float(LEAST));
    const F32 shifted = multiply_add(x, set_float(LOG2_E), set_float(WHOLE)), power = shifted - set_float(WHOLE);
    const F32 rest = multiply_add(power, set_float(-LN2_LOW), multiply_add(power, set_float(-LN2_HIGH), x));
    constexpr float TERMS[] = {1 / 720.0f, 1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 0.5f, 1, 1};
    F32 series = set_float(1 / 5040.0f);
    for (const float& next : TERMS) series = multiply_add(series, rest, set_float(next));
    const F32 result = given < set_float(LEAST) ? set_float(0) : F32(FloatBits(series) + (FloatBits(shifted) << 23));
    return given == given ? result : given;
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
