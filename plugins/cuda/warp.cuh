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

// The sum over the lanes of each of COUNT values, a power of 2; a lane gets that of value lane / (LANES / COUNT). Fewer shuffles than
// `sum` of each, as half of the values are given away each time. The values are used up.
template <int COUNT>
__device__ __forceinline__ float sum_each(float (&values)[COUNT]) {
    int bits = LANES / 2;
#pragma unroll
    for (int kept = COUNT / 2; kept > 0; kept /= 2, bits /= 2) {
        const bool upper = threadIdx.x & bits;
#pragma unroll
        for (int i = 0; i < kept; ++i) {
            const float given = upper ? values[i] : values[i + kept];
            values[i] = (upper ? values[i + kept] : values[i]) + __shfl_xor_sync(ALL, given, bits);
        }
    }
#pragma unroll
    for (; bits > 0; bits /= 2) values[0] += __shfl_xor_sync(ALL, values[0], bits);
    return values[0];
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
