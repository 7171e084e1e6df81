// Scratch memory of a head, and the rows that are kept.
#pragma once

#include "plugins/cpu/int8/gemm.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// Takes arrays from one block of memory, each at the beginning of a cache line; with a null block it only counts.
class Memory {
public:
    explicit Memory(void* block) : base_(reinterpret_cast<uintptr_t>(block)) {}

    template <typename T>
    T* take(int64_t count) {
        T* const array = reinterpret_cast<T*>(base_ + uintptr_t(bytes));
        bytes += ceil_divide(count * int64_t(sizeof(T)), 64) * 64;
        return array;
    }

    int64_t bytes = 0;

private:
    uintptr_t base_;
};

// The smallest odd number of cache lines that holds `count` elements, in elements: rows that far apart spread over the
// sets of the cache.
template <typename T>
int64_t spread_stride(int64_t count) {
    constexpr int64_t LINE = 64 / sizeof(T);
    return LINE * (ceil_divide(count, LINE) | 1);
}

// Rows of int8: where they lie, and how far apart.
struct Rows {
    const int8_t* data;
    int64_t stride;
};

// The exponentials of the scores of `rows` queries in Q15, rows `stride` apart.
struct Weights {
    const int16_t* data;
    int64_t stride, rows;
    const int32_t* factors;  // [rows] of the weighted averages
};

// Weighted averages in Q8 in place of sums of products, all below 2^31, of a query: weighted_average, which stays in 16
// bits: |sum| <= 128·total. A high half is shifted by 32 already.
INTAGLIO_SIMD I32 average_of(I32 sum, I32 factor) {
    constexpr int SHIFT = RECIPROCAL - AVERAGE_FRACTION - 32;
    return (multiply_high(sum, factor, factor) + set32(1 << (SHIFT - 1))) >> SHIFT;
}

// Keys whose sums of products have 32 bits: 512·32767·128 < 2^31.
constexpr int64_t CHUNK = 512;

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
