// Many rows of x with a tile of the weight that is unpacked once for all of them, with VNNI: its 64 rows, a part of K at a time, as
// bytes in the order in which an instruction takes them. Micro-kernels unpack a weight again for each two rows of x, and load its
// scales.
//
// A group's sums are the integers that the micro-kernels have, and y is rounded as often: rows of x have the same result, to
// the bit, alone and among others.
#pragma once

#include <cstdint>

#include "plugins/cpu/micro_kernel_choice.h"
#include "plugins/group_matmul/kernel.h"

#if defined(__AVX512VNNI__)
#define INTAGLIO_BYTE_PANELS 1
#else
#define INTAGLIO_BYTE_PANELS 0
#endif

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int BYTE_ROWS = int(GroupMatMulKernel::TILE);  // of the weight
constexpr int PAIR_ROWS = 32;         // of two vectors of sums, which are multiplied together
constexpr int64_t BYTE_PART = 256;    // values of K, in whole groups; with x of four rows most of a first-level cache
constexpr int BYTE_GROUPS = int(BYTE_PART) / 16;
constexpr int BYTE_TOKENS = 4;        // rows of x in two planes at a time, whose sums fit into the registers; twice as many in one

struct BytePart {
    int64_t groups, group_size, pairs, zero_stride;
    bool has_minimums;
    const int32_t* zero_points;
    alignas(64) uint8_t bytes[BYTE_PART * BYTE_ROWS];  // [groups][pairs][group_size / 4][2][16 rows][4]
    alignas(64) float scales[BYTE_GROUPS][BYTE_ROWS], minimums[BYTE_GROUPS][BYTE_ROWS];

    uint8_t* bytes_of(int64_t group, int64_t pair) { return bytes + (group * BYTE_ROWS + pair * PAIR_ROWS) * group_size; }
};

// Rows of x in one plane or two, from the part's first value on, and the sums of its groups.
struct ByteX {
    const int8_t* x;
    int64_t x_stride, plane_stride;
    const int32_t* sums;
    int64_t sums_stride;
};

#if INTAGLIO_BYTE_PANELS

// y: of COUNT rows, `y_stride` apart; added to
template <int PLANES, int COUNT>
[[gnu::noinline]] static void byte_products(const BytePart& part, const ByteX& rows, float* y, int64_t y_stride) {
    const int8_t* x = rows.x;
    for (int64_t group = 0; group < part.groups; ++group, x += part.group_size) {
        const int32_t* const zero_points = part.zero_points + group * part.zero_stride;
        const uint8_t* bytes = part.bytes + group * BYTE_ROWS * part.group_size;
        for (int64_t pair = 0; pair < part.pairs; ++pair) {
            __m512i sums[PLANES][COUNT][2];
#pragma GCC unroll 8
            for (int row = 0; row < COUNT; ++row) {
                const int32_t sum = rows.sums[row * rows.sums_stride + group];
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    const int32_t* const of_rows = zero_points + pair * PAIR_ROWS + half * 16;
                    sums[0][row][half] = part.zero_stride == 0
                                             ? _mm512_set1_epi32(-*zero_points * sum)
                                             : _mm512_mullo_epi32(_mm512_load_si512(of_rows), _mm512_set1_epi32(-sum));
                    if (PLANES == 2) sums[PLANES - 1][row][half] = _mm512_setzero_si512();
                }
            }
            for (int64_t k = 0; k < part.group_size; k += 16) {
#pragma GCC unroll 4
                for (int step = 0; step < 16; step += 4, bytes += 128) {
                    const __m512i weights[2] = {_mm512_load_si512(bytes), _mm512_load_si512(bytes + 64)};
#pragma GCC unroll 8
                    for (int row = 0; row < COUNT; ++row) {
#pragma GCC unroll 2
                        for (int plane = 0; plane < PLANES; ++plane) {
                            const int8_t* const values = x + row * rows.x_stride + plane * rows.plane_stride + k + step;
                            __m512i four = _mm512_set1_epi32(four_bytes(values));
                            keep(four);
#pragma GCC unroll 2
                            for (int half = 0; half < 2; ++half) {
                                sums[plane][row][half] = _mm512_dpbusd_epi32(sums[plane][row][half], weights[half], four);
                            }
                        }
                    }
                }
            }
#pragma GCC unroll 8
            for (int row = 0; row < COUNT; ++row) {
                const __m512 sum = _mm512_cvtepi32_ps(_mm512_set1_epi32(rows.sums[row * rows.sums_stride + group]));
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half) {
                    const int64_t column = pair * PAIR_ROWS + half * 16;
                    float* const target = y + row * y_stride + column;
                    __m512i joined = sums[0][row][half];
                    if (PLANES == 2) joined = _mm512_add_epi32(joined, _mm512_slli_epi32(sums[PLANES - 1][row][half], 8));
                    __m512 total = _mm512_loadu_ps(target);
                    total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(joined), _mm512_load_ps(part.scales[group] + column), total);
                    if (part.has_minimums) total = _mm512_fmadd_ps(_mm512_load_ps(part.minimums[group] + column), sum, total);
                    _mm512_storeu_ps(target, total);
                }
            }
        }
    }
}

// The same for up to MOST of `count` rows.
template <int PLANES, int MOST>
static void byte_products_of(int count, const BytePart& part, const ByteX& rows, float* y, int64_t y_stride) {
    if constexpr (MOST > 1) {
        if (count < MOST) return byte_products_of<PLANES, MOST - 1>(count, part, rows, y, y_stride);
    }
    byte_products<PLANES, MOST>(part, rows, y, y_stride);
}

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
