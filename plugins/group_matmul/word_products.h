// Many rows of x with a weight that is unpacked once for all of them, on AVX2: 16 rows of it, a part of K at a time, as words of
// 16 bits less their zero points. x is in words, too, so that an instruction multiplies 16 numbers and adds up neighbours. Bytes
// in two planes take as many multiplications, more additions, and the unpacking again for each few rows.
//
// A group's sums are the integers that the micro-kernels have, and y is rounded as often: rows of x have the same result, to
// the bit, alone and among others.
#pragma once

#include <cstdint>

#include "plugins/cpu/micro_kernel_choice.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int WORD_ROWS = 16;         // of the weight
constexpr int64_t WORD_DEPTH = 1024;  // the longest part of K: one group, or of shorter ones as many as fill WORD_PART,
constexpr int64_t WORD_PART = 256;    // which takes, with x of four rows, a third of a first-level cache
constexpr int WORD_GROUPS = int(WORD_PART) / 16;
constexpr int WORD_TOKENS = 4;        // rows of x at a time, whose sums fit into the registers

struct WordPart {
    int64_t groups, group_size;
    bool has_minimums;
    alignas(64) int16_t words[WORD_DEPTH * WORD_ROWS];
    alignas(64) float scales[WORD_GROUPS][WORD_ROWS], minimums[WORD_GROUPS][WORD_ROWS];
};

// Rows of x, from the part's first value on, and the sums of its groups.
struct WordX {
    const int16_t* x;
    int64_t x_stride;
    const int32_t* sums;
    int64_t sums_stride;
};

#if INTAGLIO_WORDS

// Adds the products of 8 values of K, or starts with them.
template <int COUNT, bool FIRST>
INTAGLIO_FLOAT void add_products(__m256i (&totals)[COUNT][2], const int16_t* words, const int16_t* x, int64_t x_stride) {
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
        __m256i weights[2];
        for (int half = 0; half < 2; ++half)
            weights[half] = _mm256_load_si256(reinterpret_cast<const __m256i*>(words + (2 * step + half) * WORD_ROWS));
#pragma GCC unroll 4
        for (int row = 0; row < COUNT; ++row) {
            int32_t two;
            __builtin_memcpy(&two, x + row * x_stride + 2 * step, sizeof two);
            const __m256i values = _mm256_set1_epi32(two);
            for (int half = 0; half < 2; ++half) {
                const __m256i products = _mm256_madd_epi16(weights[half], values);
                totals[row][half] = FIRST && step == 0 ? products : _mm256_add_epi32(totals[row][half], products);
                keep(totals[row][half]);
            }
        }
    }
}

// y: of COUNT rows, `y_stride` apart; added to
template <int COUNT>
[[gnu::noinline]] static void word_products(const WordPart& part, const WordX& rows, float* y, int64_t y_stride) {
    const int16_t *words = part.words, *x = rows.x;
    for (int64_t group = 0; group < part.groups; ++group, x += part.group_size) {
        __m256i totals[COUNT][2];
        add_products<COUNT, true>(totals, words, x, rows.x_stride);
        words += 8 * WORD_ROWS;
        for (int64_t k = 8; k < part.group_size; k += 8, words += 8 * WORD_ROWS)
            add_products<COUNT, false>(totals, words, x + k, rows.x_stride);
        for (int row = 0; row < COUNT; ++row) {
            for (int half = 0; half < 2; ++half) {
                float* const target = y + row * y_stride + half * 8;
                __m256 total = _mm256_loadu_ps(target);
                total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(totals[row][half]), _mm256_load_ps(part.scales[group] + half * 8), total);
                if (part.has_minimums) {
                    const __m256 sum = _mm256_cvtepi32_ps(_mm256_set1_epi32(rows.sums[row * rows.sums_stride + group]));
                    total = _mm256_fmadd_ps(_mm256_load_ps(part.minimums[group] + half * 8), sum, total);
                }
                _mm256_storeu_ps(target, total);
            }
        }
        asm volatile("" ::: "memory");  // y rests in memory, and in no other place beside
    }
}

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
