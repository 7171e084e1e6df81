// The product of int8 matrices with exact int32 sums, for one instruction set: this file is compiled once for each.
//
//     out [M, N] = x [M, K] · w [K, N]
//
// Both sides are packed into groups: 32 bits with GROUP consecutive entries of K, four bytes where the CPU has VNNI,
// two 16-bit integers where it has not. One instruction multiplies a group of x, broadcast, with the groups of LANES
// columns and sums each group in 32 bits: vpdpbusd, AArch64's sdot, or vpmaddwd and an addition. (vpmaddubsw would take four
// bytes too, but it saturates at 16 bits.) vpdpbusd wants unsigned bytes on one side, so int8 x counts as x + 128 and
// the surplus, 128·(sum of w's column), is taken off where the sums start: PackedMatrix::start.
//
// w is packed in panels of PANEL columns, [groups, PANEL] each, so that it is read as one stream; x keeps its rows, and
// is read where it lies if it can be (left_stride). A tile is up to ROWS rows by one panel, all its sums held in
// registers: with AVX-512, 28 of 32 leave room for two vectors of w and one of x. A step loads 16 vectors for 28
// multiplications, so the multiplier stays busy even while both sides come from the second-level cache.
//
// With matrix tiles, which take signed bytes on both sides, the packed sides are the same but for their zeros at the end of K:
// tile_products.h.
#pragma once

#include "plugins/cpu/cache_size.h"
#if INTAGLIO_TILES
#include "plugins/cpu/int8/tile_products.h"
#else
#include "plugins/cpu/int8/vector_products.h"
#endif

namespace intaglio::INTAGLIO_ISA {
namespace {

// --- sharing the work -----------------------------------------------------------------------------------------------

// Tasks of one product: [blocks, panels, parts]. A block of x stays in the second-level cache while all panels pass by;
// a panel stays in the first or second while the block's parts do. Neighbouring tasks share most, so that threads
// which take contiguous ranges of tasks read each weight once; there are enough of them to be even among 2 to 16.
struct Tasks {
    int64_t rows, panels, blocks, parts = 1;

    Tasks(int64_t all_rows, const PackedMatrix& matrix) : rows(all_rows), panels(matrix.panels) {
        constexpr int64_t ENOUGH = 48;               // tasks: a multiple of 2, 3, 4, 6, 8, 12 and 16
        constexpr int64_t LEAST_ROWS = 2 * ROWS;     // of a task
        // Three quarters of the cache for x; a panel and a tile's results pass through the rest.
        const int64_t cached = second_level_cache() / 4 * 3 / (4 * left_stride(matrix.rows));
        blocks = ceil_divide(rows, cached > ROWS ? cached : ROWS);
        if (blocks == 0 || panels == 0) return;
        parts = smaller(ceil_divide(rows, blocks * LEAST_ROWS), ceil_divide(ENOUGH, blocks * panels));
    }

    int64_t count() const { return blocks * panels * parts; }
    int64_t panel(int64_t task) const { return task / parts % panels; }
    int64_t first_row(int64_t task) const { return bound(task / (parts * panels) * parts + task % parts); }
    int64_t last_row(int64_t task) const { return bound(task / (parts * panels) * parts + task % parts + 1); }

  private:
    int64_t bound(int64_t part) const { return rows * part / (blocks * parts); }
};

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
