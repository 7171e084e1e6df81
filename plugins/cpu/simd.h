// Vectors of 32-, 16- and 8-bit integers with one interface for every instruction set: the base of the kernels.
//
// A kernel.cpp includes this file and puts its code in `namespace intaglio::INTAGLIO_ISA { namespace { ... } }`; the
// build compiles it once for each instruction set (isa.h says what must not be in it). There are
//
//     LANES       lanes of an I32: 8 (portable, avx2, neon) or 16 (avx512 and later, and with tiles); lanes are in memory's order
//     I32         LANES int32                     I16    2·LANES int16                 I8    4·LANES int8
//     Mask32, Mask16      what comparisons of I32, I16 give and select takes
//     Wide        LANES int64, products of I32    Sum64  a running sum in 64 bits
//
// In memory (no alignment needed; n is a number of lanes, those beyond it are neither read nor written, and load as 0):
//
//     load32(p) load32(p, n)                 of const int32_t*, int16_t*, int8_t*, widened with the sign
//     load16(p) load16(p, n)                 of const int16_t*, int8_t* widened, int32_t* narrowed with saturation
//     load8(p)  load8(p, n)                  of const int8_t*
//     store(p, v) store(p, v, n)             I32 to int32_t*; I16 to int16_t*, and widened to int32_t*; I8 to int8_t*
//     store_saturated(p, v) (p, v, n)        I32 or I16 to int8_t*, clipped
//     set32(x) set16(x) set8(x)              every lane the same
//
// Arithmetic, lane by lane (sums and products wrap):
//
//     + - * & | ^       I32, I16             * is the low half of the product
//     << k, >> k        I32, I16             by one count for all, 0..31 or 0..15; >> keeps the sign
//     shift_left(v, counts) shift_right(v, counts) shift_right_logical(v, counts)    each lane by its own count;
//                       I32: counts 0..31; I16: counts 0..15, shift_right_logical 0..31
//     shift_right_logical(v, k)              I32, I16
//     min max abs       I32, I16             abs of the lowest is itself
//     min_unsigned      I32, I16
//     > ==              I32, I16 -> mask     select(mask, yes, no)
//     add_saturated subtract_saturated       I16; subtract_saturated_unsigned too (max(a - b, 0) of uint16)
//     multiply_q15(a, b)                     I16: (a·b + 2^14) >> 15; -32768·-32768 wraps to -32768
//     multiply_high_unsigned(a, b)           I16: the upper half of the product of uint16
//     multiply_add_pairs(a, b)               I16 -> I32: a[2i]·b[2i] + a[2i+1]·b[2i+1]
//
// Between widths: low32(I16), high32(I16): the first and second half of the lanes; narrow(low, high): I32 to I16, or
// I16 to I8, saturated, and narrow(a, b, c, d): four I32 to I8; narrow_unsigned(low, high): I32 to I16, to 0..65535.
//
// Across lanes: sum(I32) wraps at 32 bits; largest(I32), largest(I16), smallest(I32); Sum64: `Sum64 s = zero64()`,
// s = add_unsigned(s, v) adds the lanes of an I32 as uint32, s = add_signed(s, v) as int32; sum(s) is an int64_t.
//
// Dyadic requantisation, floor((x·m + 2^(s-1)) / 2^s) in 64 bits with m any int32 and s in 0..62 (0: no rounding term):
//
//     Requantizer r = requantizer(m, s)      of two I32, one pair for each lane: load32(multiplier + c), or set32(*m)
//     requantize(x, r)                       I32; where the result lies outside of 16 bits, some value outside of 16
//                                            bits on the same side: narrow, store_saturated or clip16 follow
//     requantize_exact(x, r)                 6 or 7 instructions instead of 9 or 10, exact in 32 bits: where every s >= 33 or
//                                            |m| <= 2^s / 8, which is_narrowing(m, s, count) tells of arrays
//     is_exact(r)                            whether requantize_exact(x, r) may take the place of requantize(x, r)
//     clip16(v)                              I32 clipped to [-32768, 32767]
//     clip8(v)                               I32, I16 clipped to [-128, 127]
//     multiply_wide(x, m), + of Wide, round_shift16(wide, RoundShift r): sums of products, as IntAdd has: the rounded
//                                            shift of any |w| + 2^(s-1) < 2^63, clipped to 16 bits; r = round_shift_of(s)
//
//     ScaledSum f = scaled_sum_of(mx, my, s)
//     scaled_sum16(x, y, f)                  floor((x·mx + y·my + 2^(s-1)) / 2^s) clipped to 16 bits; |mx|, |my| < 2^30
//     ShortFactors f = short_factors(m, s)   for 16-bit x and 0 <= m < 2^15, s in 0..30, which is_short(m, s, count)
//     requantize(x, f)                       tells of arrays: 3 instructions in 32 bits
//
// A loop over n elements:
//
//     int64_t i = 0;
//     for (; i + LANES <= n; i += LANES) store_saturated(y + i, requantize(load32(x + i), r));
//     if (i < n) store_saturated(y + i, requantize(load32(x + i, int(n - i)), r), int(n - i));
#pragma once

#include <cstdint>
#include <cstring>

#include "plugins/integer_math.h"

#define INTAGLIO_SIMD [[maybe_unused]] static inline __attribute__((always_inline))

#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "plugins/cpu/simd_avx512.h"
#elif defined(__AVX2__)
#include "plugins/cpu/simd_avx2.h"
#elif defined(INTAGLIO_NEON)
#include "plugins/cpu/simd_neon.h"
#else
#include "plugins/cpu/simd_portable.h"
#endif

namespace intaglio::INTAGLIO_ISA {
namespace {

using intaglio::requantize;  // of one element, beside that of vectors

// --- the same for every instruction set -----------------------------------------------------------------------------

INTAGLIO_SIMD I32 clip16(I32 v) { return min(max(v, set32(-32768)), set32(32767)); }
INTAGLIO_SIMD I32 clip8(I32 v) { return min(max(v, set32(-128)), set32(127)); }
INTAGLIO_SIMD I16 clip8(I16 v) { return min(max(v, set16(-128)), set16(127)); }

// The shift is done in two parts, of which vectors do the first for free by taking the high halves of the products:
//
//     floor((x·m + 2^(s-1)) / 2^s) = floor((floor(x·m / 2^32) + 2^(s-33)) / 2^(s-32))     for s >= 33
//
// It is exact, as 2^(s-1) has no bits below 2^32. A smaller shift is brought to 33 by moving m to the left as far as it
// goes, and then x. x is limited before: beyond `low` and `high` the result lies outside of 16 bits, and what is left
// has room to move.
struct Requantizer {
    I32 low, high, x_shift, multiplier, multiplier_odd, half, shift;
};

INTAGLIO_SIMD Requantizer requantizer(I32 m, I32 s) {
    const I32 zero = set32(0), exponent = binary_exponent(m);
    const I32 missing = max(set32(33) - s, zero);
    const I32 m_shift = min(missing, min(max(set32(30) - exponent, zero), set32(30)));
    const I32 x_shift = min(missing - m_shift, set32(30));  // x = ±1 times 2^30 is far outside of 16 bits already
    // |m|·2^limit / 2^s lies between 2^16 and 2^18, or limit is 0 and |m| / 2^s is larger.
    const I32 limit = shift_left(set32(1), min(max(s + set32(17) - exponent, zero), set32(30)));
    const Mask32 moves = x_shift > zero;
    const I32 multiplier = shift_left(m, m_shift), shift = s + missing - set32(32);
    return {select(moves, zero - limit, set32(INT32_MIN)), select(moves, limit, set32(INT32_MAX)), x_shift, multiplier,
            odd_lanes(multiplier), shift_left(set32(1), shift - set32(1)), shift};
}

INTAGLIO_SIMD I32 requantize_exact(I32 x, const Requantizer& r) {
    return shift_right(multiply_high(x, r.multiplier, r.multiplier_odd) + r.half, r.shift);
}

INTAGLIO_SIMD I32 requantize(I32 x, const Requantizer& r) {
    return requantize_exact(shift_left(min(max(x, r.low), r.high), r.x_shift), r);
}

// No lane moves x.
INTAGLIO_SIMD bool is_exact(const Requantizer& r) { return largest(r.x_shift) == 0; }

// Whether requantize_exact may be used: no x moves where shift >= 33, or m has room for all that is missing to 33.
[[maybe_unused]] static bool is_narrowing(const int32_t* multiplier, const int32_t* shift, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        const int64_t m = multiplier[i];
        if (shift[i] < 33 && 8 * (m < 0 ? -m : m) > int64_t(1) << shift[i]) return false;
    }
    return true;
}

// Factors of 16-bit values that stay within 32 bits with them.
struct ShortFactors {
    I32 multiplier, half, shift;
};

[[maybe_unused]] static bool is_short(const int32_t* multiplier, const int32_t* shift, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        if (multiplier[i] < 0 || multiplier[i] >= 1 << 15 || shift[i] > 30) return false;
    }
    return true;
}

INTAGLIO_SIMD ShortFactors short_factors(I32 multiplier, I32 shift) {
    return {multiplier, shift_right(shift_left(set32(1), shift), set32(1)), shift};
}

INTAGLIO_SIMD I32 requantize(I32 x, const ShortFactors& f) { return shift_right(x * f.multiplier + f.half, f.shift); }

// Factors of the two terms of a sum that is rounded once.
struct ScaledSum {
    I32 x_multiplier, y_multiplier;
    RoundShift shift;
};

INTAGLIO_SIMD ScaledSum scaled_sum_of(I32 x_multiplier, I32 y_multiplier, I32 shift) {
    return {x_multiplier, y_multiplier, round_shift_of(shift)};
}

INTAGLIO_SIMD I32 scaled_sum16(I32 x, I32 y, const ScaledSum& f) {
    return round_shift16(multiply_wide(x, f.x_multiplier) + multiply_wide(y, f.y_multiplier), f.shift);
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
