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

// Loads from[0..3], which are aligned.
__device__ __forceinline__ void load(const int32_t* __restrict__ from, int32_t (&values)[SIZE]) {
    const int4 all = *reinterpret_cast<const int4*>(from);
    values[0] = all.x, values[1] = all.y, values[2] = all.z, values[3] = all.w;
}
__device__ __forceinline__ void load(const int8_t* __restrict__ from, int32_t (&values)[SIZE]) {
    const uint32_t all = *reinterpret_cast<const uint32_t*>(from);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = int8_t(all >> (8 * i));
}

// Loads from[0..3]; zeros from `count` on.
template <class T>
__device__ __forceinline__ void load(const T* __restrict__ from, int32_t count, bool aligned, int32_t (&values)[SIZE]) {
    if (aligned && count >= SIZE) return load(from, values);
#pragma unroll
    for (int i = 0; i < SIZE; ++i) values[i] = i < count ? from[i] : 0;
}
// Stores to[0..3], which are aligned.
__device__ __forceinline__ void store(int32_t* __restrict__ to, const int32_t (&values)[SIZE]) {
    *reinterpret_cast<int4*>(to) = make_int4(values[0], values[1], values[2], values[3]);
}
__device__ __forceinline__ void store(int8_t* __restrict__ to, const int32_t (&values)[SIZE]) {
    const uint32_t low = __byte_perm(values[0], values[1], 0x0040), high = __byte_perm(values[2], values[3], 0x0040);
    *reinterpret_cast<uint32_t*>(to) = __byte_perm(low, high, 0x5410);
}

// Stores to[0..3], of which `count` exist.
template <class T>
__device__ __forceinline__ void store(T* __restrict__ to, int32_t count, bool aligned, const int32_t (&values)[SIZE]) {
    if (aligned && count >= SIZE) return store(to, values);
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
        if (i < count) to[i] = T(values[i]);
}

}  // namespace quad
