// Many rows of x in float32 with a weight of levels, which are looked up once for all of them, on AVX2: 16 rows of it, a part of a
// group's K at a time. Each sum is added up in the micro-kernels' order: rows of x have the same result, to the bit, alone and among
// others.
#pragma once

#include <cstdint>

#include "plugins/cpu/micro_kernel_choice.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int FLOAT_ROWS = 16;        // of the weight
constexpr int64_t FLOAT_DEPTH = 256;  // of a part, half of a first-level cache
constexpr int FLOAT_TOKENS = 4;       // rows of x at a time, whose sums fit into the registers

#if INTAGLIO_WORDS

INTAGLIO_FLOAT void keep(__m256& value) { asm("" : "+x"(value)); }

struct FloatPart {
    int64_t depth;
    bool starts, ends;  // a group
    alignas(64) float floats[FLOAT_DEPTH * FLOAT_ROWS];
    alignas(64) float scales[FLOAT_ROWS];
};

// x: of COUNT rows, `x_stride` apart; totals: [COUNT][FLOAT_ROWS], of a group's parts so far; y: `y_stride` apart, added to
template <int COUNT>
[[gnu::noinline]] static void float_products(const FloatPart& part, const float* x, int64_t x_stride, float* totals, float* y,
                                             int64_t y_stride) {
    const float* floats = part.floats;
    __m256 sums[COUNT][2];
#pragma GCC unroll 4
    for (int row = 0; row < COUNT; ++row)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half)
            sums[row][half] = part.starts ? _mm256_setzero_ps() : _mm256_load_ps(totals + row * FLOAT_ROWS + half * 8);
    for (int64_t k = 0; k < part.depth; k += 4, floats += 4 * FLOAT_ROWS) {
#pragma GCC unroll 4
        for (int step = 0; step < 4; ++step) {
            const float* const place = floats + step * FLOAT_ROWS;
            const __m256 weights[2] = {_mm256_load_ps(place), _mm256_load_ps(place + 8)};
#pragma GCC unroll 4
            for (int row = 0; row < COUNT; ++row) {
                const __m256 value = _mm256_broadcast_ss(x + row * x_stride + k + step);
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    sums[row][half] = _mm256_fmadd_ps(weights[half], value, sums[row][half]);
                    keep(sums[row][half]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < COUNT; ++row) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            float* const target = y + row * y_stride + half * 8;
            if (part.ends) {
                const __m256 scale = _mm256_load_ps(part.scales + half * 8);
                _mm256_storeu_ps(target, _mm256_fmadd_ps(sums[row][half], scale, _mm256_loadu_ps(target)));
            } else {
                _mm256_store_ps(totals + row * FLOAT_ROWS + half * 8, sums[row][half]);
            }
        }
    }
}

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
