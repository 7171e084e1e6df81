// clip(round(value / 2^shift)) of 64-bit values. A GPU has no comparison of 64 bits, and shifts of them take two instructions,
// but for one that keeps the low half alone. So results are brought to 32 bits by the high half first, and compared there.
#pragma once

#include "integer_math.h"

namespace rounding {

// Keeps `value` in a register: what is computed once for many elements the compiler would compute again for each few.
__device__ __forceinline__ void hold([[maybe_unused]] int32_t& value) {
#if defined(__CUDACC__)
    asm volatile("" : "+r"(value));
#endif
}

// a·b + c, by one instruction: from the multiplication itself the compiler makes four where it has put the 64 bits of a factor
// aside that stays the same. (PTX's mad.wide takes three.)
__device__ __forceinline__ int64_t multiply_add(int32_t a, int32_t b, int64_t c) {
#if defined(__CUDACC__)
    int64_t product;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product + c;
#else
    return int64_t(a) * b + c;
#endif
}

// The same of an `a` of 64 bits and a positive b.
__device__ __forceinline__ int64_t multiply_add(int64_t a, int32_t b, int64_t c) {
#if defined(__CUDACC__)
    uint64_t product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(uint32_t(a)), "r"(b));
    product += uint64_t(c);
    const uint32_t high = uint32_t(product >> 32) + uint32_t(a >> 32) * uint32_t(b);  // without a carry
    return int64_t(uint64_t(high) << 32 | uint32_t(product));
#else
    return a * b + c;
#endif
}

// What depends on the shift, 2..62, alone: once for a row, a column or a kernel.
struct Shift {
    int64_t half;  // to be added to the value
    int32_t bits;
    int32_t limit;  // where the result has 32 bits, the value's high half is within -limit - 1 and limit; beyond, 2^30 at least

    Shift() = default;
    __device__ __forceinline__ explicit Shift(int32_t shift)
        : half(int64_t(1) << (shift - 1)), bits(shift), limit(shift > 31 ? 0x7fffffff : int32_t((1u << (shift - 1)) - 1)) {}
    __device__ __forceinline__ void hold() {
        rounding::hold(bits);
        rounding::hold(limit);
    }
};

constexpr int32_t LEAST = 2;  // of a shift; below, values are multiplied instead
__device__ __forceinline__ int32_t missing(int32_t shift) { return max(LEAST - shift, 0); }

// clip(value / 2^shift), `value` with `shift.half` added, |value| < 2^63, of results that have 32 bits.
__device__ __forceinline__ int32_t clip_short(int64_t value, const Shift& shift, int32_t low, int32_t high) {
    return min(max(int32_t(value >> shift.bits), low), high);
}

// The same of any results, to bounds of up to 2^30.
__device__ __forceinline__ int32_t clip(int64_t value, const Shift& shift, int32_t low, int32_t high) {
    const int32_t upper = min(max(int32_t(value >> 32), -shift.limit - 1), shift.limit);
    return clip_short(int64_t(uint64_t(uint32_t(upper)) << 32 | uint32_t(value)), shift, low, high);
}
__device__ __forceinline__ int32_t clip8(int64_t value, const Shift& shift) { return clip(value, shift, -128, 127); }
__device__ __forceinline__ int32_t clip16(int64_t value, const Shift& shift) { return clip(value, shift, -32768, 32767); }

// A dyadic factor, multiplier / 2^shift, to results of up to 16 bits: a multiplier that is too large for the shift that is
// missing exceeds them with any x.
struct Factor {
    int32_t multiplier;
    Shift shift;

    Factor() = default;
    __device__ __forceinline__ Factor(int32_t multiplier, int32_t shift)
        : multiplier(min(max(multiplier, -most(shift)), most(shift)) * (1 << missing(shift))), shift(max(shift, LEAST)) {}
    __device__ __forceinline__ static int32_t most(int32_t shift) { return 0x7fffffff >> missing(shift); }
    __device__ __forceinline__ void hold() {
        rounding::hold(multiplier);
        shift.hold();
    }
    __device__ __forceinline__ int64_t product(int32_t x) const { return multiply_add(x, multiplier, shift.half); }
    __device__ __forceinline__ int32_t clip8(int32_t x) const { return rounding::clip8(product(x), shift); }
    __device__ __forceinline__ int32_t clip16(int32_t x) const { return rounding::clip16(product(x), shift); }
};

// A factor of x of 16 bits to results of 8: over 2^(shift - 1) its products are less than 2^30, as every larger multiplier exceeds
// 8 bits with any x but 0.
struct ShortFactor : Factor {
    ShortFactor() = default;
    __device__ __forceinline__ ShortFactor(int32_t multiplier, int32_t shift) : Factor(multiplier, shift) {
        const int32_t most = this->shift.bits < 17 ? (1 << (this->shift.bits + 14)) - 1 : 0x7fffffff;
        this->multiplier = min(max(this->multiplier, -most), most);
    }
    __device__ __forceinline__ int32_t clip8(int32_t x, int32_t zero_point = 0) const {
        return rounding::clip_short(product(x), shift, -128 - zero_point, 127 - zero_point) + zero_point;
    }
};

// The sum of two values with multipliers below 2^30 of their own, over 2^shift, to results of up to 16 bits.
struct Sum {
    int32_t x_multiplier, y_multiplier, missing_shift;
    Shift shift;

    Sum() = default;
    __device__ __forceinline__ Sum(int32_t x_multiplier, int32_t y_multiplier, int32_t shift)
        : x_multiplier(x_multiplier), y_multiplier(y_multiplier), missing_shift(missing(shift)), shift(max(shift, LEAST)) {}
    __device__ __forceinline__ int64_t of(int32_t x, int32_t y) const {
        constexpr int64_t MOST = int64_t(1) << 60;
        if (!missing_shift) return multiply_add(x, x_multiplier, multiply_add(y, y_multiplier, shift.half));
        const int64_t total = multiply_add(x, x_multiplier, int64_t(y) * y_multiplier);
        return min(max(total, -MOST), MOST) * (1 << missing_shift) + shift.half;
    }
    __device__ __forceinline__ int32_t clip8(int32_t x, int32_t y) const { return rounding::clip8(of(x, y), shift); }
    __device__ __forceinline__ int32_t clip16(int32_t x, int32_t y) const { return rounding::clip16(of(x, y), shift); }
};

}  // namespace rounding
