// Four elements of a row that lie side by side, in registers: moved together where their address allows it.
#pragma once

#include "integer_math.h"

namespace quad {

constexpr int SIZE = 4;
constexpr int WARP = SIZE * 32;  // elements that a warp moves at once: part p of a row are its elements WARP·p ..

// Whether every fourth element of an array [rows, length] can be moved together with the three behind it.
template <class T>
__device__ __forceinline__ bool is_aligned(const T* array, int32_t length) {
    return length % SIZE == 0 && reinterpret_cast<uint64_t>(array) % (SIZE * sizeof(T)) == 0;
}

// Loads from[0..3]; zeros from `count` on.
__device__ __forceinline__ void load(const int32_t* __restrict__ from, int32_t count, bool aligned, int32_t (&values)[SIZE]) {
    if (aligned && count >= SIZE) {
        const int4 all = *reinterpret_cast<const int4*>(from);
        values[0] = all.x, values[1] = all.y, values[2] = all.z, values[3] = all.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = i < count ? from[i] : 0;
}
__device__ __forceinline__ void load(const int8_t* __restrict__ from, int32_t count, bool aligned, int32_t (&values)[SIZE]) {
    if (aligned && count >= SIZE) {
        const uint32_t all = *reinterpret_cast<const uint32_t*>(from);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) values[i] = int8_t(all >> (8 * i));
        return;
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = i < count ? from[i] : 0;
}

// Stores to[0..3], of which `count` exist.
__device__ __forceinline__ void store(int32_t* __restrict__ to, int32_t count, bool aligned, const int32_t (&values)[SIZE]) {
    if (aligned && count >= SIZE) {
        *reinterpret_cast<int4*>(to) = make_int4(values[0], values[1], values[2], values[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
        if (i < count) to[i] = values[i];
}
__device__ __forceinline__ void store(int8_t* __restrict__ to, int32_t count, bool aligned, const int32_t (&values)[SIZE]) {
    if (aligned && count >= SIZE) {
        uint32_t all = 0;
#pragma unroll
        for (int i = 0; i < SIZE; ++i) all |= uint32_t(uint8_t(values[i])) << (8 * i);
        *reinterpret_cast<uint32_t*>(to) = all;
        return;
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
        if (i < count) to[i] = int8_t(values[i]);
}

}  // namespace quad
