// The vectors of simd.h in AVX2: 256 bits, 8 lanes of 32 bits.
#pragma once

#include <immintrin.h>

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int LANES = 8;

struct I32 { __m256i v; };
struct I16 { __m256i v; };
struct I8 { __m256i v; };
struct Mask32 { __m256i v; };
struct Mask16 { __m256i v; };
struct Wide { __m256i even, odd; };  // the products of the even and of the odd lanes
struct Sum64 { __m256i v; };

// --- memory ---------------------------------------------------------------------------------------------------------

INTAGLIO_SIMD I32 set32(int32_t x) { return {_mm256_set1_epi32(x)}; }
INTAGLIO_SIMD I16 set16(int16_t x) { return {_mm256_set1_epi16(x)}; }
INTAGLIO_SIMD I8 set8(int8_t x) { return {_mm256_set1_epi8(x)}; }

INTAGLIO_SIMD __m256i first8(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// AVX2 has masked accesses of 32 bits only: a part of a vector of narrower lanes goes through a whole one in memory.
template <typename T>
struct Part {
    T lanes[32 / sizeof(T)] = {};
    __m256i vector() const { return _mm256_loadu_si256((const __m256i*)lanes); }
};
template <typename T>
INTAGLIO_SIMD Part<T> part(const T* p, int n) {
    Part<T> part;
    std::memcpy(part.lanes, p, size_t(n) * sizeof(T));
    return part;
}
template <typename T>
INTAGLIO_SIMD void store_part(T* p, __m256i v, int n) {
    Part<T> part;
    _mm256_storeu_si256((__m256i*)part.lanes, v);
    std::memcpy(p, part.lanes, size_t(n) * sizeof(T));
}

INTAGLIO_SIMD I32 load32(const int32_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
INTAGLIO_SIMD I32 load32(const int32_t* p, int n) { return {_mm256_maskload_epi32(p, first8(n))}; }
INTAGLIO_SIMD I32 load32(const int16_t* p) { return {_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i*)p))}; }
INTAGLIO_SIMD I32 load32(const int16_t* p, int n) { return load32(part(p, n).lanes); }
INTAGLIO_SIMD I32 load32(const int8_t* p) { return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))}; }
INTAGLIO_SIMD I32 load32(const int8_t* p, int n) { return load32(part(p, n).lanes); }

INTAGLIO_SIMD I16 narrow(I32 low, I32 high) {
    return {_mm256_permute4x64_epi64(_mm256_packs_epi32(low.v, high.v), 0xD8)};
}
INTAGLIO_SIMD I16 narrow_unsigned(I32 low, I32 high) {
    return {_mm256_permute4x64_epi64(_mm256_packus_epi32(low.v, high.v), 0xD8)};
}
INTAGLIO_SIMD I8 narrow(I16 low, I16 high) {
    return {_mm256_permute4x64_epi64(_mm256_packs_epi16(low.v, high.v), 0xD8)};
}
INTAGLIO_SIMD I8 narrow(I32 a, I32 b, I32 c, I32 d) {
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(a.v, b.v), _mm256_packs_epi32(c.v, d.v));
    return {_mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))};
}
INTAGLIO_SIMD I32 low32(I16 v) { return {_mm256_cvtepi16_epi32(_mm256_castsi256_si128(v.v))}; }
INTAGLIO_SIMD I32 high32(I16 v) { return {_mm256_cvtepi16_epi32(_mm256_extracti128_si256(v.v, 1))}; }

INTAGLIO_SIMD I16 load16(const int16_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
INTAGLIO_SIMD I16 load16(const int16_t* p, int n) { return {part(p, n).vector()}; }
INTAGLIO_SIMD I16 load16(const int8_t* p) { return {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p))}; }
INTAGLIO_SIMD I16 load16(const int8_t* p, int n) { return load16(part(p, n).lanes); }
INTAGLIO_SIMD I16 load16(const int32_t* p) { return narrow(load32(p), load32(p + LANES)); }
INTAGLIO_SIMD I16 load16(const int32_t* p, int n) { return narrow(load32(p, n), load32(p + LANES, n - LANES)); }
INTAGLIO_SIMD I8 load8(const int8_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
INTAGLIO_SIMD I8 load8(const int8_t* p, int n) { return {part(p, n).vector()}; }

INTAGLIO_SIMD void store(int32_t* p, I32 v) { _mm256_storeu_si256((__m256i*)p, v.v); }
INTAGLIO_SIMD void store(int32_t* p, I32 v, int n) { _mm256_maskstore_epi32(p, first8(n), v.v); }
INTAGLIO_SIMD void store(int16_t* p, I16 v) { _mm256_storeu_si256((__m256i*)p, v.v); }
INTAGLIO_SIMD void store(int16_t* p, I16 v, int n) { store_part(p, v.v, n); }
INTAGLIO_SIMD void store(int32_t* p, I16 v) {
    store(p, low32(v));
    store(p + LANES, high32(v));
}
INTAGLIO_SIMD void store(int32_t* p, I16 v, int n) {
    store(p, low32(v), n);
    store(p + LANES, high32(v), n - LANES);
}
INTAGLIO_SIMD void store(int8_t* p, I8 v) { _mm256_storeu_si256((__m256i*)p, v.v); }
INTAGLIO_SIMD void store(int8_t* p, I8 v, int n) { store_part(p, v.v, n); }

// The lanes as int8 in the lower half, or quarter, of a register.
INTAGLIO_SIMD __m128i saturated8(I32 v) {
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(v.v, v.v), v.v);
    return _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
}
INTAGLIO_SIMD __m128i saturated8(I16 v) {
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packs_epi16(v.v, v.v), 0x08));
}
INTAGLIO_SIMD void store_saturated(int8_t* p, I32 v) { _mm_storel_epi64((__m128i*)p, saturated8(v)); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I32 v, int n) { store_part(p, _mm256_castsi128_si256(saturated8(v)), n); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I16 v) { _mm_storeu_si128((__m128i*)p, saturated8(v)); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I16 v, int n) { store_part(p, _mm256_castsi128_si256(saturated8(v)), n); }

// --- arithmetic of 32 bits ------------------------------------------------------------------------------------------

INTAGLIO_SIMD I32 operator+(I32 a, I32 b) { return {_mm256_add_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator-(I32 a, I32 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator*(I32 a, I32 b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator&(I32 a, I32 b) { return {_mm256_and_si256(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator|(I32 a, I32 b) { return {_mm256_or_si256(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator^(I32 a, I32 b) { return {_mm256_xor_si256(a.v, b.v)}; }
INTAGLIO_SIMD I32 operator<<(I32 v, int k) { return {_mm256_slli_epi32(v.v, k)}; }
INTAGLIO_SIMD I32 operator>>(I32 v, int k) { return {_mm256_srai_epi32(v.v, k)}; }
INTAGLIO_SIMD I32 shift_right_logical(I32 v, int k) { return {_mm256_srli_epi32(v.v, k)}; }
INTAGLIO_SIMD I32 shift_left(I32 v, I32 counts) { return {_mm256_sllv_epi32(v.v, counts.v)}; }
INTAGLIO_SIMD I32 shift_right(I32 v, I32 counts) { return {_mm256_srav_epi32(v.v, counts.v)}; }
INTAGLIO_SIMD I32 shift_right_logical(I32 v, I32 counts) { return {_mm256_srlv_epi32(v.v, counts.v)}; }
INTAGLIO_SIMD I32 min(I32 a, I32 b) { return {_mm256_min_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 max(I32 a, I32 b) { return {_mm256_max_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 min_unsigned(I32 a, I32 b) { return {_mm256_min_epu32(a.v, b.v)}; }
INTAGLIO_SIMD I32 abs(I32 v) { return {_mm256_abs_epi32(v.v)}; }
INTAGLIO_SIMD Mask32 operator>(I32 a, I32 b) { return {_mm256_cmpgt_epi32(a.v, b.v)}; }
INTAGLIO_SIMD Mask32 operator==(I32 a, I32 b) { return {_mm256_cmpeq_epi32(a.v, b.v)}; }
INTAGLIO_SIMD I32 select(Mask32 mask, I32 yes, I32 no) { return {_mm256_blendv_epi8(no.v, yes.v, mask.v)}; }

// --- arithmetic of 16 bits ------------------------------------------------------------------------------------------

INTAGLIO_SIMD I16 operator+(I16 a, I16 b) { return {_mm256_add_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator-(I16 a, I16 b) { return {_mm256_sub_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator*(I16 a, I16 b) { return {_mm256_mullo_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator&(I16 a, I16 b) { return {_mm256_and_si256(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator|(I16 a, I16 b) { return {_mm256_or_si256(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator^(I16 a, I16 b) { return {_mm256_xor_si256(a.v, b.v)}; }
INTAGLIO_SIMD I16 operator<<(I16 v, int k) { return {_mm256_slli_epi16(v.v, k)}; }
INTAGLIO_SIMD I16 operator>>(I16 v, int k) { return {_mm256_srai_epi16(v.v, k)}; }
INTAGLIO_SIMD I16 shift_right_logical(I16 v, int k) { return {_mm256_srli_epi16(v.v, k)}; }
INTAGLIO_SIMD I16 min(I16 a, I16 b) { return {_mm256_min_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 max(I16 a, I16 b) { return {_mm256_max_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 min_unsigned(I16 a, I16 b) { return {_mm256_min_epu16(a.v, b.v)}; }
INTAGLIO_SIMD I16 abs(I16 v) { return {_mm256_abs_epi16(v.v)}; }
INTAGLIO_SIMD Mask16 operator>(I16 a, I16 b) { return {_mm256_cmpgt_epi16(a.v, b.v)}; }
INTAGLIO_SIMD Mask16 operator==(I16 a, I16 b) { return {_mm256_cmpeq_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 select(Mask16 mask, I16 yes, I16 no) { return {_mm256_blendv_epi8(no.v, yes.v, mask.v)}; }
INTAGLIO_SIMD I16 add_saturated(I16 a, I16 b) { return {_mm256_adds_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 subtract_saturated(I16 a, I16 b) { return {_mm256_subs_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 subtract_saturated_unsigned(I16 a, I16 b) { return {_mm256_subs_epu16(a.v, b.v)}; }
INTAGLIO_SIMD I16 multiply_q15(I16 a, I16 b) { return {_mm256_mulhrs_epi16(a.v, b.v)}; }
INTAGLIO_SIMD I16 multiply_high_unsigned(I16 a, I16 b) { return {_mm256_mulhi_epu16(a.v, b.v)}; }
INTAGLIO_SIMD I32 multiply_add_pairs(I16 a, I16 b) { return {_mm256_madd_epi16(a.v, b.v)}; }

// AVX2 has no shifts of 16-bit lanes by their own counts: the odd lanes are shifted where they lie, in the upper halves
// of 32-bit lanes, and so are the even lanes, for the shifts to the right after being brought there.
INTAGLIO_SIMD __m256i upper_halves(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi32(int(0xFFFF0000))); }
INTAGLIO_SIMD __m256i even_counts(I16 counts) { return _mm256_and_si256(counts.v, _mm256_set1_epi32(0xFFFF)); }
INTAGLIO_SIMD __m256i odd_counts(I16 counts) { return _mm256_srli_epi32(counts.v, 16); }
INTAGLIO_SIMD I16 join_halves(__m256i even, __m256i odd) { return {_mm256_blend_epi16(even, odd, 0xAA)}; }
INTAGLIO_SIMD I16 shift_left(I16 v, I16 counts) {
    return join_halves(_mm256_sllv_epi32(v.v, even_counts(counts)), _mm256_sllv_epi32(upper_halves(v.v), odd_counts(counts)));
}
INTAGLIO_SIMD I16 shift_right(I16 v, I16 counts) {
    const __m256i even = _mm256_srav_epi32(_mm256_slli_epi32(v.v, 16), even_counts(counts));
    return join_halves(_mm256_srli_epi32(even, 16), _mm256_srav_epi32(v.v, odd_counts(counts)));
}
INTAGLIO_SIMD I16 shift_right_logical(I16 v, I16 counts) {
    const __m256i even = _mm256_srlv_epi32(_mm256_slli_epi32(v.v, 16), even_counts(counts));
    return join_halves(_mm256_srli_epi32(even, 16), _mm256_srlv_epi32(v.v, odd_counts(counts)));
}

// --- across lanes ---------------------------------------------------------------------------------------------------

// The last two steps swap 64-bit and then 32-bit neighbours.
INTAGLIO_SIMD int32_t sum(I32 v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v.v), _mm256_extracti128_si256(v.v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}
INTAGLIO_SIMD int32_t largest(I32 v) {
    __m128i s = _mm_max_epi32(_mm256_castsi256_si128(v.v), _mm256_extracti128_si256(v.v, 1));
    s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}
INTAGLIO_SIMD int32_t smallest(I32 v) {
    __m128i s = _mm_min_epi32(_mm256_castsi256_si128(v.v), _mm256_extracti128_si256(v.v, 1));
    s = _mm_min_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_min_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}
INTAGLIO_SIMD int32_t largest(I16 v) { return largest(max(low32(v), high32(v))); }

INTAGLIO_SIMD Sum64 zero64() { return {_mm256_setzero_si256()}; }
INTAGLIO_SIMD Sum64 add_unsigned(Sum64 s, I32 v) {
    const __m256i even = _mm256_blend_epi32(_mm256_setzero_si256(), v.v, 0x55);
    return {_mm256_add_epi64(s.v, _mm256_add_epi64(even, _mm256_srli_epi64(v.v, 32)))};
}
INTAGLIO_SIMD Sum64 add_signed(Sum64 s, I32 v) {
    const __m256i low = _mm256_cvtepi32_epi64(_mm256_castsi256_si128(v.v));
    return {_mm256_add_epi64(s.v, _mm256_add_epi64(low, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(v.v, 1))))};
}
INTAGLIO_SIMD int64_t sum(Sum64 s) {
    const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(s.v), _mm256_extracti128_si256(s.v, 1));
    return _mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1);
}

// --- requantisation -------------------------------------------------------------------------------------------------

INTAGLIO_SIMD __m256i odd_lanes(__m256i v) { return _mm256_srli_epi64(v, 32); }
INTAGLIO_SIMD I32 odd_lanes(I32 v) { return {odd_lanes(v.v)}; }
// The low halves of the 64-bit lanes of two vectors, as 32-bit lanes by turns.
INTAGLIO_SIMD I32 interleave(__m256i even, __m256i odd) {
    return {_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)};
}

// Shifts of 64-bit lanes and what is added before them. AVX2 shifts 64-bit lanes without their sign only: 2^63 is
// added to the rounding term, which makes every sum positive, and 2^63 / 2^s is taken off the result.
struct RoundShift { __m256i shift_even, shift_odd, add_even, add_odd; };

INTAGLIO_SIMD RoundShift round_shift_of(I32 shift) {
    const __m256i one = _mm256_set1_epi64x(1), bias = _mm256_set1_epi64x(INT64_MIN);
    const __m256i even = _mm256_blend_epi32(_mm256_setzero_si256(), shift.v, 0x55), odd = odd_lanes(shift.v);
    // 2^(s-1); a shift by 0 - 1, a huge unsigned count, gives 0
    const __m256i half_even = _mm256_sllv_epi64(one, _mm256_sub_epi64(even, one));
    const __m256i half_odd = _mm256_sllv_epi64(one, _mm256_sub_epi64(odd, one));
    return {even, odd, _mm256_add_epi64(half_even, bias), _mm256_add_epi64(half_odd, bias)};
}

INTAGLIO_SIMD Wide multiply_wide(I32 x, I32 m) {
    return {_mm256_mul_epi32(x.v, m.v), _mm256_mul_epi32(odd_lanes(x.v), odd_lanes(m.v))};
}
INTAGLIO_SIMD Wide operator+(Wide a, Wide b) {
    return {_mm256_add_epi64(a.even, b.even), _mm256_add_epi64(a.odd, b.odd)};
}
INTAGLIO_SIMD __m256i round_shift16(__m256i w, __m256i add, __m256i shift) {
    const __m256i bias = _mm256_set1_epi64x(INT64_MIN);
    const __m256i low = _mm256_set1_epi64x(-32768), high = _mm256_set1_epi64x(32767);
    const __m256i biased = _mm256_srlv_epi64(_mm256_add_epi64(w, add), shift);
    __m256i result = _mm256_sub_epi64(biased, _mm256_srlv_epi64(bias, shift));
    result = _mm256_blendv_epi8(result, high, _mm256_cmpgt_epi64(result, high));
    return _mm256_blendv_epi8(result, low, _mm256_cmpgt_epi64(low, result));
}
INTAGLIO_SIMD I32 round_shift16(Wide w, RoundShift r) {
    return interleave(round_shift16(w.even, r.add_even, r.shift_even), round_shift16(w.odd, r.add_odd, r.shift_odd));
}

// The high halves of the products of a and b; b_odd = odd_lanes(b).
INTAGLIO_SIMD I32 multiply_high(I32 a, I32 b, I32 b_odd) {
    const __m256i even = _mm256_mul_epi32(a.v, b.v), odd = _mm256_mul_epi32(odd_lanes(a.v), b_odd.v);
    return {_mm256_blend_epi32(odd_lanes(even), odd, 0xAA)};
}

// The exponents of the lanes as float32, which are floor(log2|v|), or one more just below a power of two; -127 for 0.
INTAGLIO_SIMD I32 binary_exponent(I32 v) {
    const __m256i bits = _mm256_castps_si256(_mm256_cvtepi32_ps(v.v));
    return {_mm256_sub_epi32(_mm256_and_si256(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(255)), _mm256_set1_epi32(127))};
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
