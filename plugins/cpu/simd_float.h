// Vectors of float32 for the kernels that compute in floating point, on the instruction sets of plugins/cpu/isa.h.
//
//     FLOATS                        lanes of an F32: 4 (portable), 8 (avx2) or 16 (avx512 and later)
//     load_float(p), set_float(x)   no alignment needed
//     multiply_add(a, b, c)         a·b + c, rounded once where the processor can
//     sum(v)                        of the lanes
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
INTAGLIO_FLOAT float sum(F32 v) { return _mm512_reduce_add_ps(v); }
#elif defined(__AVX2__)
using F32 = __m256;
constexpr int FLOATS = 8;
INTAGLIO_FLOAT F32 load_float(const float* p) { return _mm256_loadu_ps(p); }
INTAGLIO_FLOAT F32 set_float(float x) { return _mm256_set1_ps(x); }
INTAGLIO_FLOAT F32 multiply_add(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
INTAGLIO_FLOAT float sum(F32 v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
#else
using F32 = float __attribute__((vector_size(16)));
constexpr int FLOATS = 4;
INTAGLIO_FLOAT F32 load_float(const float* p) {
    F32 v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
INTAGLIO_FLOAT F32 set_float(float x) { return F32{x, x, x, x}; }
INTAGLIO_FLOAT F32 multiply_add(F32 a, F32 b, F32 c) { return a * b + c; }
INTAGLIO_FLOAT float sum(F32 v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}
#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
