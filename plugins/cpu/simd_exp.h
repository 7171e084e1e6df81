// i-exp of whole rows in 16-bit lanes: what IntSoftmax and IntAttention share. integer_math.h has it for one element.
#pragma once

#include "plugins/cpu/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// i-exp of 2·LANES distances below the row's maximum; each is a uint32, at most `limit` matters.
class VectorExp {
public:
    explicit VectorExp(const ExpConstants& constants)
        : limit_(set32(int32_t(constants.limit))),  // below 2^31, as the scale is at least 2^-27
          round_(set32((1 << constants.right) - 1)),
          left_(set32(constants.left)),
          right_(set32(constants.right)),
          multiplier_(set16(int16_t(constants.multiplier))) {}

    // exp(-distance·scale) in Q15.
    I16 operator()(I32 low, I32 high) const {
        const I16 t = multiply_high_unsigned(narrow_unsigned(shortened(low), shortened(high)), multiplier_);
        const I16 from_centre = set16(EXP_CENTRE) - ((t & set16((1 << EXP_FRACTION) - 1)) << (14 - EXP_FRACTION));
        const I16 curve = multiply_q15(multiply_q15(from_centre, from_centre), set16(EXP_CURVE));
        const I16 mantissa = add_saturated(curve, set16(EXP_FLOOR));
        // (((2·mantissa) >> octaves) + 1) >> 1 is mantissa·2^-octaves rounded, and so a product in Q15; 2^-0 has no
        // place in it, but -1 has.
        const I16 octaves = shift_right_logical(t, EXP_FRACTION);
        return abs(multiply_q15(mantissa, shift_right_logical(set16(INT16_MIN), octaves)));
    }

private:
    I32 shortened(I32 distance) const {
        return shift_right_logical(shift_left(min_unsigned(distance, limit_), left_) + round_, right_);
    }

    I32 limit_, round_, left_, right_;
    I16 multiplier_;
};

INTAGLIO_SIMD const int8_t* bytes(const uint8_t* mask) { return (const int8_t*)mask; }

// The largest of x [n], of those entries that the mask [n] keeps; mask may be null. INT32_MIN where there is none.
[[maybe_unused]] static int32_t row_largest(const int32_t* x, const uint8_t* mask, int64_t n) {
    const I32 none = set32(INT32_MIN), zero = set32(0);
    I32 top = none;
    int64_t i = 0;
    if (mask == nullptr) {
        for (; i + LANES <= n; i += LANES) top = max(top, load32(x + i));
        if (i < n && n >= LANES) top = max(top, load32(x + n - LANES));  // the rest, and some for the second time
        int32_t result = largest(top);
        for (; i < n && n < LANES; ++i) result = x[i] > result ? x[i] : result;
        return result;
    }
    for (; i + LANES <= n; i += LANES) {
        top = max(top, select(load32(bytes(mask + i)) == zero, none, load32(x + i)));
    }
    if (const int rest = int(n - i); rest > 0) {  // beyond the end the mask loads as 0
        top = max(top, select(load32(bytes(mask + i), rest) == zero, none, load32(x + i, rest)));
    }
    return largest(top);
}

// The first n of 2·LANES entries of a mask, all 1 where it is null; 0 beyond.
INTAGLIO_SIMD I16 kept_entries(const uint8_t* mask, int n) {
    static constexpr int8_t ONES_THEN_ZEROS[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static_assert(4 * LANES <= 64, "the window slides over 2·LANES of each");
    return mask != nullptr ? load16(bytes(mask), n) : load16(ONES_THEN_ZEROS + 32 - n);
}

// p[i] = exp((x[i] - top)·scale) in Q15, 0 where the mask [n] is 0; mask may be null. `top` is the row's largest
// entry of those that the mask keeps. p has room for n rounded up to a multiple of 2·LANES, and ends with zeros. Returns
// the sum of p: below 2^31, as n is at most MAX_ROW.
[[maybe_unused]] static int32_t exp_row(const int32_t* x, const uint8_t* mask, int64_t n, int32_t top, const VectorExp& exp,
                                        int16_t* p) {
    const I32 from = set32(top);
    const I16 zero = set16(0), one = set16(1);
    I32 total = set32(0);
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        I16 v = exp(from - load32(x + i), from - load32(x + i + LANES));
        if (mask != nullptr) v = select(load16(bytes(mask + i)) == zero, zero, v);
        store(p + i, v);
        total = total + multiply_add_pairs(v, one);
    }
    if (const int rest = int(n - i); rest > 0) {
        const I32 low = load32(x + i, rest < LANES ? rest : LANES);
        const I32 high = rest > LANES ? load32(x + i + LANES, rest - LANES) : low;
        const I16 v = exp(from - low, from - high);
        const I16 kept = select(kept_entries(mask == nullptr ? nullptr : mask + i, rest) == zero, zero, v);
        store(p + i, kept);
        total = total + multiply_add_pairs(kept, one);
    }
    return sum(total);
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
