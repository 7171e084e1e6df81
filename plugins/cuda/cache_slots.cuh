// Slots of a quantised cache: see quantize_cache/slots.py.
#pragma once

#include "integer_math.h"

namespace slots {

constexpr int32_t GROUP = 32;  // channels with a scale

__device__ __forceinline__ int32_t groups(int32_t depth) { return (depth + GROUP - 1) / GROUP; }

// Without and with the zeros that fill the last word.
template <int BITS>
__device__ __forceinline__ int32_t used_bytes(int32_t depth) {
    return BITS == 32 ? depth * 4 : BITS == 8 ? depth + 2 * groups(depth) : 19 * groups(depth);
}
template <int BITS>
__device__ __forceinline__ int32_t bytes(int32_t depth) {
    return (used_bytes<BITS>(depth) + 3) / 4 * 4;
}

__device__ __forceinline__ float scale(const uint8_t* from) {
    return __int_as_float(int32_t(uint32_t(from[0]) << 23 | uint32_t(from[1]) << 15));
}

// Channel k of the row that lies at `slot`; BITS of 32: a row of floats.
template <int BITS>
__device__ __forceinline__ float channel(const uint8_t* slot, int32_t depth, int32_t k) {
    const int32_t group = k / GROUP;
    if (BITS == 32) return reinterpret_cast<const float*>(slot)[k];
    if (BITS == 8) {
        const float code = float(int8_t(slot[k]));
        return scale(slot + depth + 2 * group) * (code * (code < 0 ? -code : code));
    }
    const int32_t all = groups(depth), half = GROUP / 2, within = k % GROUP;
    const uint8_t pair = slot[group * half + within % half];
    const float zero = float(int8_t(slot[all * (half + 2) + group]));
    return scale(slot + all * half + 2 * group) * (float(within < half ? pair & 15 : pair >> 4) + zero);
}

}  // namespace slots
