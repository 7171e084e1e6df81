// Many rows of x with a weight whose entries are looked up once for all of them, on AVX2: some rows of it, a part of K at a time,
// as words of 16 bits, which x is too. The sums are the integers that the micro-kernels have.
#pragma once

#include <cstdint>

#include "plugins/cpu/micro_kernel_choice.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t MANY_ROWS = 3;     // of x, from which on this is faster
constexpr int64_t WORD_PART = 1024;  // values of K, whose sums have 32 bits
constexpr int64_t WORD_ROWS = 16;    // of the weight
constexpr int WORD_TOKENS = 2;       // rows of x at a time: their sums with four of the weight fit into the registers

#if INTAGLIO_WORDS

// words: of four rows, WORD_PART apart; x: of COUNT rows, `x_stride` words apart; sums: of these, `sums_stride` apart, in two planes
// of STRIDE integers; added to
template <int STRIDE, int COUNT>
[[gnu::noinline]] static void word_products(const int16_t* words, int64_t depth, const int16_t* x, int64_t x_stride, int32_t* sums,
                                            int64_t sums_stride) {
    __m256i totals[COUNT][4];
#pragma GCC unroll 2
    for (int row = 0; row < COUNT; ++row)
#pragma GCC unroll 4
        for (int n = 0; n < 4; ++n) totals[row][n] = _mm256_setzero_si256();
    for (int64_t k = 0; k < depth; k += 64) {
#pragma GCC unroll 4
        for (int step = 0; step < 64; step += 16) {
            __m256i values[COUNT];
#pragma GCC unroll 2
            for (int row = 0; row < COUNT; ++row) {
                values[row] = _mm256_load_si256(reinterpret_cast<const __m256i*>(x + row * x_stride + k + step));
                keep(values[row]);
            }
#pragma GCC unroll 4
            for (int n = 0; n < 4; ++n) {
                __m256i weights = _mm256_load_si256(reinterpret_cast<const __m256i*>(words + n * WORD_PART + k + step));
                keep(weights);
#pragma GCC unroll 2
                for (int row = 0; row < COUNT; ++row) {
                    totals[row][n] = _mm256_add_epi32(totals[row][n], _mm256_madd_epi16(weights, values[row]));
                    keep(totals[row][n]);
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int row = 0; row < COUNT; ++row)
        add_word_sums<STRIDE, 4>(sums + row * sums_stride, totals[row][0], totals[row][1], totals[row][2], totals[row][3]);
}

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
