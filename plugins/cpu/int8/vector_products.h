// The products of int8/gemm.h in vectors.
#pragma once

#include "plugins/cpu/int8/packing.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// tile [R, PANEL] = start + x·w, for one panel `w` [groups, PANEL] and rows of x that lie `stride` groups apart; `start`
// [PANEL], or null for 0. The tile's rows lie `tile_stride` apart.
template <int R, Dot DOT>
[[maybe_unused]] __attribute__((noinline)) static void multiply_tile(
    const int32_t* x, int64_t stride, const int32_t* w, int64_t groups, const int32_t* start, int32_t* tile,
    int64_t tile_stride) {
    I32 sums[R][2];
    const I32 left = start ? load32(start) : set32(0), right = start ? load32(start + LANES) : set32(0);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        sums[r][0] = left;
        sums[r][1] = right;
    }
    // Addresses can scale an offset by 2, 4 and 8, so those of the odd rows are enough: registers do not suffice for one
    // per row, and the compiler would keep some in vector registers.
    int64_t odd_rows[(R + 1) / 2];
#pragma GCC unroll 16
    for (int i = 0; i < (R + 1) / 2; ++i) odd_rows[i] = (2 * i + 1) * 4 * stride;
    const char* from = reinterpret_cast<const char*>(x);
    for (int64_t g = 0; g < groups; ++g, from += 4) {
        const I32 w0 = load32(w + g * PANEL), w1 = load32(w + g * PANEL + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const int twos = r == 0 ? 0 : __builtin_ctz(unsigned(r));
            const char* const row = r == 0 ? from : from + (odd_rows[r >> twos >> 1] << twos);
            int32_t group;  // of int32, or of int8 that lie where they were
            std::memcpy(&group, row, sizeof group);
            const I32 entries = set32(group);
            sums[r][0] = DOT(sums[r][0], entries, w0);
            sums[r][1] = DOT(sums[r][1], entries, w1);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
        store(tile + r * tile_stride, sums[r][0]);
        store(tile + r * tile_stride + LANES, sums[r][1]);
    }
}

// The same for any number of rows from 1 to R.
template <Dot DOT = dot, int R = ROWS>
[[maybe_unused]] static void multiply(
    const int32_t* x, int64_t stride, int64_t rows, const int32_t* w, int64_t groups, const int32_t* start,
    int32_t* tile, int64_t tile_stride = PANEL) {
    if constexpr (R > 1) {
        if (rows < R) return multiply<DOT, R - 1>(x, stride, rows, w, groups, start, tile, tile_stride);
    }
    multiply_tile<R, DOT>(x, stride, w, groups, start, tile, tile_stride);
}

// The same, as a thread uses it.
struct Multiplier {
    void operator()(const int32_t* x, int64_t stride, int64_t rows, const int32_t* w, int64_t groups, const int32_t* start,
                    int32_t* tile, int64_t tile_stride) const {
        multiply(x, stride, rows, w, groups, start, tile, tile_stride);
    }
};

// Rows `first` to `last` - 1 of packed x times one panel, tile by tile: finish(tile [rows, PANEL], first row, rows).
// Tiles are balanced, since a tile of few rows is bound by the loads of w.
template <class Finish>
[[maybe_unused]] static void multiply_panel(const Multiplier& multiplier, const int32_t* x, int64_t first, int64_t last,
                                            const PackedMatrix& matrix, int64_t panel, const Finish& finish) {
    alignas(64) int32_t tile[ROWS * PANEL];
    const int32_t* const start = matrix.start + panel * PANEL;
    const int64_t stride = left_stride(matrix.rows), count = last - first, tiles = ceil_divide(count, ROWS);
    for (int64_t i = 0; i < tiles; ++i) {
        const int64_t row = first + count * i / tiles, rows = first + count * (i + 1) / tiles - row;
        multiplier(x + row * stride, stride, rows, matrix.panel(panel), matrix.groups, start, tile, PANEL);
        finish(tile, row, rows);
    }
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
