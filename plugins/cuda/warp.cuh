// Reductions over the lanes of a warp, or over each GROUP of lanes side by side; every lane gets the result.
#pragma once

#include "integer_math.h"

namespace warp {

constexpr int LANES = 32;
constexpr uint32_t ALL = 0xffffffffu;
constexpr int32_t LOWEST = -2147483647 - 1;

template <int GROUP = LANES, class T>
__device__ __forceinline__ T sum(T value) {
#pragma unroll
    for (int bits = GROUP / 2; bits > 0; bits /= 2) value += __shfl_xor_sync(ALL, value, bits);
    return value;
}

template <int GROUP = LANES, class T>
__device__ __forceinline__ T largest(T value) {
#pragma unroll
    for (int bits = GROUP / 2; bits > 0; bits /= 2) {
        const T other = __shfl_xor_sync(ALL, value, bits);
        value = other > value ? other : value;
    }
    return value;
}

}  // namespace warp
