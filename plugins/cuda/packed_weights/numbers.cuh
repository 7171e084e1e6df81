// Numbers of 2 to 6 or 8 bits out of the bit streams of bit_packing.py, eight at a time: 32 numbers are BITS words, and
// the eight from 8t on are the BITS bytes from BITS·t on.
#pragma once

#include "integer_math.h"

namespace packed_numbers {

// Four of the eight bytes of `high:low`, by the nibbles of `selector`: three bits name a byte, the fourth asks for its
// sign bit instead, eight times. (CUDA's __byte_perm masks the fourth.)
__device__ __forceinline__ uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
#if defined(__CUDACC__)
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
    return result;
#else
    const uint64_t bytes = uint64_t(high) << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t nibble = selector >> (4 * i) & 15, byte = uint32_t(bytes >> (8 * (nibble & 7)) & 255);
        result |= (nibble < 8 ? byte : byte >> 7 ? 255u : 0u) << (8 * i);
    }
    return result;
#endif
}

// The eight numbers from 8t on of 32 in shared memory, aligned to 4 (with 8 bits: to 8); others follow in the high bits.
template <int BITS>
__device__ __forceinline__ uint2 load_eight(const int8_t* chunk, int t) {
    if (BITS == 8) return *reinterpret_cast<const uint2*>(chunk + 8 * t);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(chunk);
    if (BITS == 4) return make_uint2(words[t], 0);
    if (BITS == 2) return make_uint2(words[t / 2] >> (t % 2 * 16), 0);
    const int first = BITS * t / 4, second = min(first + 1, BITS - 1), shift = BITS * t % 4 * 8;
    const uint64_t both = (uint64_t(words[second]) << 32 | words[first]) >> shift;
    return make_uint2(uint32_t(both), uint32_t(both >> 32));
}

// The eight numbers from 8·i on of 32 in registers, where i is known when the kernel is compiled; others follow as above.
template <int BITS>
__device__ __forceinline__ uint2 eight(const uint32_t (&words)[BITS], int i) {
    if (BITS == 8) return make_uint2(words[2 * i % BITS], words[(2 * i + 1) % BITS]);
    const int first = BITS * i / 4, second = min(first + 1, BITS - 1), shift = BITS * i % 4 * 8;
    const uint64_t both = (uint64_t(words[second]) << 32 | words[first]) >> shift;
    return make_uint2(uint32_t(both), uint32_t(both >> 32));
}

// Eight numbers of 2, 3 or 4 bits as eight nibbles.
template <int BITS>
__device__ __forceinline__ uint32_t nibbles(uint32_t numbers) {
    if (BITS == 4) return numbers;
    if (BITS == 3) {
        numbers = (numbers & 0x00000fff) | (numbers << 4 & 0x0fff0000);
        numbers = (numbers & 0x003f003f) | (numbers << 2 & 0x3f003f00);
        return (numbers & 0x07070707) | (numbers << 1 & 0x70707070);
    }
    numbers = (numbers & 0x000000ff) | (numbers << 8 & 0x00ff0000);
    numbers = (numbers & 0x000f000f) | (numbers << 4 & 0x0f000f00);
    return (numbers & 0x03030303) | (numbers << 2 & 0x30303030);
}

// Four numbers of 5 or 6 bits as bytes; others may follow.
template <int BITS>
__device__ __forceinline__ uint32_t four_bytes(uint32_t numbers) {
    constexpr uint32_t PAIR = (1 << 2 * BITS) - 1, ONE = (1 << BITS) - 1;
    numbers = (numbers & PAIR) | (numbers << (16 - 2 * BITS) & PAIR << 16);
    return (numbers & ONE * 0x00010001) | (numbers << (8 - BITS) & ONE * 0x01000100);
}

// Eight numbers as bytes, four to a register.
template <int BITS>
__device__ __forceinline__ uint2 bytes(uint2 numbers) {
    if (BITS == 8) return numbers;
    if (BITS > 4) {
        const uint64_t both = uint64_t(numbers.y) << 32 | numbers.x;
        return make_uint2(four_bytes<BITS>(numbers.x), four_bytes<BITS>(uint32_t(both >> 4 * BITS)));
    }
    const uint32_t all = nibbles<BITS>(numbers.x), even = all & 0x0f0f0f0f, odd = all >> 4 & 0x0f0f0f0f;
    return make_uint2(permute(even, odd, 0x5140), permute(even, odd, 0x7362));
}

// The eight numbers from 8·eight on of a row of `words` words in global memory, `bits` bits each, from the lowest on.
__device__ __forceinline__ uint64_t load_eight(const uint32_t* __restrict__ row, int32_t words, int32_t eight, int32_t bits) {
    const int64_t byte = int64_t(eight) * bits;
    const int32_t word = int32_t(byte / 4), shift = int32_t(byte % 4) * 8;
    uint64_t both = row[word];
    if (word + 1 < words) both |= uint64_t(row[word + 1]) << 32;
    return both >> shift;
}

}  // namespace packed_numbers
