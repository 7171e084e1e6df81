// float16 numbers by their bits, alone in 16 bits or two side by side in 32, and elements that are float16 or float32.
// CUDA's own header is no part of what this project needs to compile a kernel; these are the few instructions used.
#pragma once

#include "integer_math.h"

#if !defined(__CUDACC__)
#include <cmath>
#endif

namespace half {

#if defined(__CUDACC__)

__device__ __forceinline__ float to_float(uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Rounded to the nearest, halves to even.
__device__ __forceinline__ uint16_t from_float(float value) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ float bits_to_float(uint32_t bits) { return __uint_as_float(bits); }

// Of both numbers in 32 bits.
__device__ __forceinline__ uint32_t subtract(uint32_t a, uint32_t b) {
    uint32_t difference;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
    return difference;
}
__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

#else  // the portable twins

inline float to_float(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float magnitude = exponent ? std::ldexp(float(1024 + fraction), exponent - 25) : std::ldexp(float(fraction), -24);
    if (exponent == 31) magnitude = fraction ? NAN : INFINITY;
    return bits >> 15 ? -magnitude : magnitude;
}

inline uint16_t from_float(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (std::isnan(value)) return sign | 0x7e00;
    if (magnitude >= 65520) return sign | 0x7c00;  // halfway from the largest to the next
    const int exponent = magnitude < std::ldexp(1.0f, -14) ? -14 : std::ilogb(magnitude);
    return uint16_t(sign + ((exponent + 14) << 10) + int(std::nearbyint(std::ldexp(magnitude, 10 - exponent))));
}

inline float bits_to_float(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t subtract(uint32_t a, uint32_t b) {
    const uint32_t high = from_float(to_float(uint16_t(a >> 16)) - to_float(uint16_t(b >> 16)));
    return high << 16 | from_float(to_float(uint16_t(a)) - to_float(uint16_t(b)));
}
inline uint32_t multiply(uint32_t a, uint32_t b) {
    const uint32_t high = from_float(to_float(uint16_t(a >> 16)) * to_float(uint16_t(b >> 16)));
    return high << 16 | from_float(to_float(uint16_t(a)) * to_float(uint16_t(b)));
}

#endif

// An element of either dtype, to compute with in float32 ...
__device__ __forceinline__ float number(uint16_t element) { return to_float(element); }
__device__ __forceinline__ float number(float element) { return element; }

// ... and back.
__device__ __forceinline__ void store(uint16_t* to, float value) { *to = from_float(value); }
__device__ __forceinline__ void store(float* to, float value) { *to = value; }

// Element i of an array of float16 or float32, by the bytes of an element: in float32, ...
__device__ __forceinline__ float element(const void* __restrict__ array, int32_t bytes, int64_t i) {
    return bytes == 2 ? to_float(static_cast<const uint16_t*>(array)[i]) : static_cast<const float*>(array)[i];
}
// ... and in float16.
__device__ __forceinline__ uint16_t element_bits(const void* __restrict__ array, int32_t bytes, int64_t i) {
    return bytes == 2 ? static_cast<const uint16_t*>(array)[i] : from_float(static_cast<const float*>(array)[i]);
}

}  // namespace half
