// The vectors of simd.h in AVX-512 (F, BW, DQ, VL): 512 bits, 16 lanes of 32 bits.
#pragma once

#include <immintrin.h>

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int LANES = 16;

struct I32 { __m512i v; };
struct I16 { __m512i v; };
struct I8 { __m512i v; };
struct Mask32 { __mmask16 v; };
struct Mask16 { __mmask32 v; };
struct Wide { __m512i even, odd; };  // the products of the even and of the odd lanes
struct Sum64 { __m512i v; };

INTAGLIO_SIMD __mmask16 first16(int n) { return __mmask16((1u << n) - 1); }
INTAGLIO_SIMD __mmask32 first32(int n) { return __mmask32((uint64_t(1) << n) - 1); }
INTAGLIO_SIMD __mmask64 first64(int n) { return n >= 64 ? ~__mmask64(0) : (__mmask64(1) << n) - 1; }

// --- memory ---------------------------------------------------------------------------------------------------------

INTAGLIO_SIMD I32 set32(int32_t x) { return {_mm512_set1_epi32(x)}; }
INTAGLIO_SIMD I16 set16(int16_t x) { return {_mm512_set1_epi16(x)}; }
INTAGLIO_SIMD I8 set8(int8_t x) { return {_mm512_set1_epi8(x)}; }

INTAGLIO_SIMD I32 load32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
INTAGLIO_SIMD I32 load32(const int32_t* p, int n) { return {_mm512_maskz_loadu_epi32(first16(n), p)}; }
INTAGLIO_SIMD I32 load32(const int16_t* p) { return {_mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)p))}; }
INTAGLIO_SIMD I32 load32(const int16_t* p, int n) {
    return {_mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(first16(n), p))};
}
INTAGLIO_SIMD I32 load32(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
INTAGLIO_SIMD I32 load32(const int8_t* p, int n) { return {_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first16(n), p))}; }

INTAGLIO_SIMD I16 narrow(I32 low, I32 high) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return {_mm512_permutexvar_epi64(order, _mm512_packs_epi32(low.v, high.v))};
}
INTAGLIO_SIMD I16 narrow_unsigned(I32 low, I32 high) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return {_mm512_permutexvar_epi64(order, _mm512_packus_epi32(low.v, high.v))};
}
INTAGLIO_SIMD I8 narrow(I16 low, I16 high) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return {_mm512_permutexvar_epi64(order, _mm512_packs_epi16(low.v, high.v))};
}
INTAGLIO_SIMD I8 narrow(I32 a, I32 b, I32 c, I32 d) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i packed = _mm512_packs_epi16(_mm512_packs_epi32(a.v, b.v), _mm512_packs_epi32(c.v, d.v));
    return {_mm512_permutexvar_epi32(order, packed)};
}
INTAGLIO_SIMD I32 low32(I16 v) { return {_mm512_cvtepi16_epi32(_mm512_castsi512_si256(v.v))}; }
INTAGLIO_SIMD I32 high32(I16 v) { return {_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(v.v, 1))}; }

INTAGLIO_SIMD I16 load16(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
INTAGLIO_SIMD I16 load16(const int16_t* p, int n) { return {_mm512_maskz_loadu_epi16(first32(n), p)}; }
INTAGLIO_SIMD I16 load16(const int8_t* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p))}; }
INTAGLIO_SIMD I16 load16(const int8_t* p, int n) {
    return {_mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(first32(n), p))};
}
INTAGLIO_SIMD I16 load16(const int32_t* p) { return narrow(load32(p), load32(p + LANES)); }
INTAGLIO_SIMD I16 load16(const int32_t* p, int n) {
    const __mmask32 mask = first32(n);
    return narrow(I32{_mm512_maskz_loadu_epi32(__mmask16(mask), p)},
                  I32{_mm512_maskz_loadu_epi32(__mmask16(mask >> LANES), p + LANES)});
}
INTAGLIO_SIMD I8 load8(const int8_t* p) { return {_mm512_loadu_si512(p)}; }
INTAGLIO_SIMD I8 load8(const int8_t* p, int n) { return {_mm512_maskz_loadu_epi8(first64(n), p)}; }

INTAGLIO_SIMD void store(int32_t* p, I32 v) { _mm512_storeu_si512(p, v.v); }
INTAGLIO_SIMD void store(int32_t* p, I32 v, int n) { _mm512_mask_storeu_epi32(p, first16(n), v.v); }
INTAGLIO_SIMD void store(int16_t* p, I16 v) { _mm512_storeu_si512(p, v.v); }
INTAGLIO_SIMD void store(int16_t* p, I16 v, int n) { _mm512_mask_storeu_epi16(p, first32(n), v.v); }
INTAGLIO_SIMD void store(int32_t* p, I16 v) {
    store(p, low32(v));
    store(p + LANES, high32(v));
}
INTAGLIO_SIMD void store(int32_t* p, I16 v, int n) {
    const __mmask32 mask = first32(n);
    _mm512_mask_storeu_epi32(p, __mmask16(mask), low32(v).v);
    _mm512_mask_storeu_epi32(p + LANES, __mmask16(mask >> LANES), high32(v).v);
}
INTAGLIO_SIMD void store(int8_t* p, I8 v) { _mm512_storeu_si512(p, v.v); }
INTAGLIO_SIMD void store(int8_t* p, I8 v, int n) { _mm512_mask_storeu_epi8(p, first64(n), v.v); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I32 v) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(v.v)); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I32 v, int n) {
    _mm_mask_storeu_epi8(p, first16(n), _mm512_cvtsepi32_epi8(v.v));
}
INTAGLIO_SIMD void store_saturated(int8_t* p, I16 v) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtsepi16_epi8(v.v)); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I16 v, int n) {
    _mm256_mask_storeu_epi8(p, first32(n), _mm512_cvtsepi16_epi8(v.v));
}

// --- arithmetic of 32 bits ------------------------------------------------------------------------------------------

INTAGLIO_SIMD I32 operator+(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator-(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator*(I32 a, I32 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator&(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator|(I32 a, I32 b) { return {_mm512_or_si512(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator^(I32 a, I32 b) { return {_mm512_xor_si512(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator<<(I32 v, int k) { return {_mm512_slli_epi32(v.v, unsigned(k))}; }
INTAGLIO_SIMD I32 operator>>(I32 v, int k) { return {_mm512_srai_epi32(v.v, unsigned(k))}; }
INTAGLIO_SIMD I32 shift_right_logical(I32 v, int k) { return {_mm512_srli_epi32(v.v, unsigned(k))}; }
INTAGLIO_SIMD I32 shift_left(I32 v, I32 counts) { return {_mm512_sllv_epi32(v.v, counts.v)}; }
INTAGLIO_SIMD I32 shift_right(I32 v, I32 counts) { return {_mm512_srav_epi32(v.v, counts.v)}; }
INTAGLIO_SIMD I32 shift_right_logical(I32 v, I32 counts) { return {_mm512_srlv_epi32(v.v, counts.v)}; }
INTAGLIO_SIMD I32 min(I32 a, I32 b) { return {_mm512_min_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 max(I32 a, I32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 min_unsigned(I32 a, I32 b) { return {_mm512_min_epu32(a.v, b.v)}; }
INTAGLIO_SIMD I32 abs(I32 v) { return {_mm512_abs_epi32(v.v)}; }
INTAGLIO_SIMD Mask32 operator>(I32 a, I32 b) { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }
INTAGLIO_SIMD Mask32 operator==(I32 a, I32 b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
INTAGLIO_SIMD I32 select(Mask32 mask, I32 yes, I32 no) { return {_mm512_mask_mov_epi32(no.v, mask.v, yes.v)}; }

// --- arithmetic of 16 bits ------------------------------------------------------------------------------------------

INTAGLIO_SIMD I16 operator+(I16 a, I16 b) { return {_mm512_add_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator-(I16 a, I16 b) { return {_mm512_sub_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator*(I16 a, I16 b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator&(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator|(I16 a, I16 b) { return {_mm512_or_si512(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator^(I16 a, I16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator<<(I16 v, int k) { return {_mm512_slli_epi16(v.v, unsigned(k))}; }
INTAGLIO_SIMD I16 operator>>(I16 v, int k) { return {_mm512_srai_epi16(v.v, unsigned(k))}; }
INTAGLIO_SIMD I16 shift_right_logical(I16 v, int k) { return {_mm512_srli_epi16(v.v, unsigned(k))}; }
INTAGLIO_SIMD I16 shift_left(I16 v, I16 counts) { return {_mm512_sllv_epi16(v.v, counts.v)}; }
INTAGLIO_SIMD I16 shift_right(I16 v, I16 counts) { return {_mm512_srav_epi16(v.v, counts.v)}; }
INTAGLIO_SIMD I16 shift_right_logical(I16 v, I16 counts) { return {_mm512_srlv_epi16(v.v, counts.v)}; }
INTAGLIO_SIMD I16 min(I16 a, I16 b) { return {_mm512_min_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 max(I16 a, I16 b) { return {_mm512_max_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 min_unsigned(I16 a, I16 b) { return {_mm512_min_epu16(a.v, b.v)}; }
INTAGLIO_SIMD I16 abs(I16 v) { return {_mm512_abs_epi16(v.v)}; }
INTAGLIO_SIMD Mask16 operator>(I16 a, I16 b) { return {_mm512_cmpgt_epi16_mask(a.v, b.v)}; }
INTAGLIO_SIMD Mask16 operator==(I16 a, I16 b) { return {_mm512_cmpeq_epi16_mask(a.v, b.v)}; }
INTAGLIO_SIMD I16 select(Mask16 mask, I16 yes, I16 no) { return {_mm512_mask_mov_epi16(no.v, mask.v, yes.v)}; }
INTAGLIO_SIMD I16 add_saturated(I16 a, I16 b) { return {_mm512_adds_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 subtract_saturated(I16 a, I16 b) { return {_mm512_subs_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 subtract_saturated_unsigned(I16 a, I16 b) { return {_mm512_subs_epu16(a.v, b.v)}; }
INTAGLIO_SIMD I16 multiply_q15(I16 a, I16 b) { return {_mm512_mulhrs_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 multiply_high_unsigned(I16 a, I16 b) { return {_mm512_mulhi_epu16(a.v, b.v)}; }
INTAGLIO_SIMD I32 multiply_add_pairs(I16 a, I16 b) { return {_mm512_madd_epi16(a.v, b.v)}; }

// --- across lanes ---------------------------------------------------------------------------------------------------

// The last two steps swap 64-bit and then 32-bit neighbours.
INTAGLIO_SIMD int32_t sum(I32 v) {
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(v.v), _mm512_extracti64x4_epi64(v.v, 1));
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}
INTAGLIO_SIMD int32_t largest(I32 v) { return _mm512_reduce_max_epi32(v.v); }
INTAGLIO_SIMD int32_t smallest(I32 v) { return _mm512_reduce_min_epi32(v.v); }
INTAGLIO_SIMD int32_t largest(I16 v) { return largest(max(low32(v), high32(v))); }

INTAGLIO_SIMD Sum64 zero64() { return {_mm512_setzero_si512()}; }
INTAGLIO_SIMD Sum64 add_unsigned(Sum64 s, I32 v) {
    const __m512i even = _mm512_maskz_mov_epi32(0x5555, v.v);
    return {_mm512_add_epi64(s.v, _mm512_add_epi64(even, _mm512_srli_epi64(v.v, 32)))};
}
INTAGLIO_SIMD Sum64 add_signed(Sum64 s, I32 v) {
    const __m512i even = _mm512_srai_epi64(_mm512_slli_epi64(v.v, 32), 32);
    return {_mm512_add_epi64(s.v, _mm512_add_epi64(even, _mm512_srai_epi64(v.v, 32)))};
}
INTAGLIO_SIMD int64_t sum(Sum64 s) { return _mm512_reduce_add_epi64(s.v); }

// --- requantisation -------------------------------------------------------------------------------------------------

INTAGLIO_SIMD __m512i odd_lanes(__m512i v) { return _mm512_srli_epi64(v, 32); }
// The low halves of the 64-bit lanes of two vectors, as 32-bit lanes by turns.
INTAGLIO_SIMD I32 interleave(__m512i even, __m512i odd) {
    return {_mm512_mask_shuffle_epi32(even, 0xAAAA, odd, _MM_PERM_CCAA)};
}

// Shifts and rounding terms of 64-bit lanes.
struct RoundShift { __m512i shift_even, shift_odd, half_even, half_odd; };

INTAGLIO_SIMD RoundShift round_shift_of(I32 shift) {
    const __m512i one = _mm512_set1_epi64(1);
    const __m512i even = _mm512_maskz_mov_epi32(0x5555, shift.v), odd = odd_lanes(shift.v);
    // 2^(s-1); a shift by 0 - 1, a huge unsigned count, gives 0
    return {even, odd, _mm512_sllv_epi64(one, _mm512_sub_epi64(even, one)), _mm512_sllv_epi64(one, _mm512_sub_epi64(odd, one))};
}

INTAGLIO_SIMD Wide multiply_wide(I32 x, I32 m) {
    return {_mm512_mul_epi32(x.v, m.v), _mm512_mul_epi32(odd_lanes(x.v), odd_lanes(m.v))};
}
INTAGLIO_SIMD Wide operator+(Wide a, Wide b) {
    return {_mm512_add_epi64(a.even, b.even), _mm512_add_epi64(a.odd, b.odd)};
}
INTAGLIO_SIMD I32 round_shift16(Wide w, RoundShift r) {
    const __m512i low = _mm512_set1_epi64(-32768), high = _mm512_set1_epi64(32767);
    const __m512i even = _mm512_srav_epi64(_mm512_add_epi64(w.even, r.half_even), r.shift_even);
    const __m512i odd = _mm512_srav_epi64(_mm512_add_epi64(w.odd, r.half_odd), r.shift_odd);
    return interleave(_mm512_min_epi64(_mm512_max_epi64(even, low), high),
                      _mm512_min_epi64(_mm512_max_epi64(odd, low), high));
}

INTAGLIO_SIMD I32 odd_lanes(I32 v) { return {odd_lanes(v.v)}; }
// The high halves of the products of a and b; b_odd = odd_lanes(b).
INTAGLIO_SIMD I32 multiply_high(I32 a, I32 b, I32 b_odd) {
    const __m512i even = _mm512_mul_epi32(a.v, b.v), odd = _mm512_mul_epi32(odd_lanes(a.v), b_odd.v);
    return {_mm512_mask_shuffle_epi32(odd, 0x5555, even, _MM_PERM_DDBB)};
}

// The exponents of the lanes as float32, which are floor(log2|v|), or one more just below a power of two; -127 for 0.
INTAGLIO_SIMD I32 binary_exponent(I32 v) {
    const __m512i bits = _mm512_castps_si512(_mm512_cvtepi32_ps(v.v));
    return {_mm512_sub_epi32(_mm512_and_si512(_mm512_srli_epi32(bits, 23), _mm512_set1_epi32(255)), _mm512_set1_epi32(127))};
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
