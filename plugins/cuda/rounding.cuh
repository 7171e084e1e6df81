// clip(round(value / 2^shift)) of 64-bit values, by 32-bit instructions: a GPU has no others that shift or compare, and a
// kernel that moves a few bytes for each rounding would wait for those in the place of the memory.
#pragma once

#include "integer_math.h"

namespace rounding {

// What depends on the shift, 2..62, alone: once for a row, a column or a kernel.
struct Shift {
    int64_t half;   // to be added to the value
    int32_t bits;   // of a shift of 32 bits
    int32_t limit;  // where the result has 32 bits, the value's high half is within -limit - 1 and limit; beyond, 2^30 at least
    bool is_high;   // the result is the high half's alone

    Shift() = default;
    __device__ __forceinline__ explicit Shift(int32_t shift)
        : half(int64_t(1) << (shift - 1)), bits(shift & 31), limit(shift > 31 ? 0x7fffffff : int32_t((1u << (shift - 1)) - 1)),
          is_high(shift > 31) {}
};

constexpr int32_t LEAST = 2;  // of a shift; below, values are multiplied instead
__device__ __forceinline__ int32_t missing(int32_t shift) { return max(LEAST - shift, 0); }

// clip(value / 2^shift), `value` with `shift.half` added, |value| < 2^63, to bounds of up to 2^30.
__device__ __forceinline__ int32_t clip(int64_t value, const Shift& shift, int32_t low, int32_t high) {
    const int32_t upper = int32_t(value >> 32), inside = min(max(upper, -shift.limit - 1), shift.limit);
    const int32_t both = int32_t(__funnelshift_r(uint32_t(value), uint32_t(inside), uint32_t(shift.bits)));
    return min(max(shift.is_high ? upper >> shift.bits : both, low), high);
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
    __device__ __forceinline__ int64_t product(int32_t x) const { return int64_t(x) * multiplier + shift.half; }
    __device__ __forceinline__ int32_t clip8(int32_t x) const { return rounding::clip8(product(x), shift); }
    __device__ __forceinline__ int32_t clip16(int32_t x) const { return rounding::clip16(product(x), shift); }
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
        int64_t total = int64_t(x) * x_multiplier + int64_t(y) * y_multiplier;
        if (missing_shift) total = min(max(total, -MOST), MOST) * (1 << missing_shift);
        return total + shift.half;
    }
    __device__ __forceinline__ int32_t clip8(int32_t x, int32_t y) const { return rounding::clip8(of(x, y), shift); }
    __device__ __forceinline__ int32_t clip16(int32_t x, int32_t y) const { return rounding::clip16(of(x, y), shift); }
};

}  // namespace rounding
