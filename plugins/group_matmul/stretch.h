// Where a packed weight and x lie in memory (kernel.cpp), and a stretch of both, which a micro-kernel multiplies.
#pragma once

#include <stdint.h>

#include "plugins/cpu/fixed_point.h"
#include "plugins/cpu/index_units.h"
#include "plugins/cpu/micro_kernel_choice.h"
#include "plugins/group_matmul/group_factors.h"
#include "plugins/group_matmul/levels.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int ROWS = 16;  // of a block
constexpr int64_t TILE = GroupMatMulKernel::TILE;
constexpr int BLOCKS = int(TILE) / ROWS;

// What a micro-kernel works on: rows of x with rows of one tile, over a stretch of groups. Its vectors of the tile's rows
// follow each other, and rows of scales, zero points and y are TILE apart.
struct GroupStretch {
    int64_t groups, group_units;
    const uint8_t* units;
    int64_t unit_stride, block_stride;
    Factors scales, minimums;  // minimums: with the other sign, to be added
    const int32_t* zero_points;
    const uint8_t* tables;  // the levels
    bool computed, has_minimums, prefetch;  // prefetch: far ahead
    int64_t zero_stride;   // from a group's zero points to the next one's: TILE, or 0 where they are all the same
    const float *x, *x_sums;  // where x is float32; the sums of its groups, for minimums
    const int8_t* digits;  // where it is in fixed point, planes `plane_stride` apart; or words
    const int32_t* sums;   // of each group, [groups][sum_count(planes)], rows `sums_stride` apart
    int64_t x_stride, plane_stride, sums_stride;
    float* y;  // added to; without the factors of x's rows
};

constexpr int unit_depth(int bits) { return unit_indices(bits) / ROWS; }  // values of K: 4 to 32

struct Layout {
    explicit Layout(const GroupFormat& f)
        : units(f.depth / unit_depth(f.bits)),
          groups(f.depth / f.group_size),
          tiles((f.rows + TILE - 1) / TILE),
          tile_bytes(units * BLOCKS * unit_bytes(f.bits)),
          unit_stride((FLOATS < ROWS ? 1 : BLOCKS) * unit_bytes(f.bits)),
          block_stride((FLOATS < ROWS ? units : 1) * unit_bytes(f.bits)),
          scales(f.scales, tiles, groups, tiles * tile_bytes),
          minimums(f.minimums, f.has_minimums ? tiles : 0, groups, scales.end),
          zero_points(minimums.end),
          zero_stride(f.zero_point == NO_ZERO_POINT ? TILE : 0),
          levels(zero_points + (zero_stride ? tiles * groups : 1) * TILE * int64_t(sizeof(int32_t))),
          bytes(levels + level_bytes(f)) {}

    int64_t units;   // of a row's K
    int64_t groups;  // of a row
    int64_t tiles;
    int64_t tile_bytes, unit_stride, block_stride;
    FactorLayout scales, minimums;
    int64_t zero_points, zero_stride, levels, bytes;
};

// Two planes have one sum of 32 bits together.
constexpr int sum_count(int planes) { return planes == 3 ? 3 : 1; }

// With x in one plane: values of K, in whole groups, that have a factor together.
constexpr int64_t X_PART = 256;
static int64_t part_groups(const GroupFormat& f) { return f.group_size < X_PART ? X_PART / f.group_size : 1; }

// Of a row of x in fixed point: [planes][K] int8, or [K] words, then [groups][sum_count(planes)] int32, the sums of each
// group, and with one plane the factors of the parts. In float32, for minimums: [K], then [groups] sums.
static int64_t x_row_bytes(const GroupFormat& f) {
    const int64_t groups = f.depth / f.group_size, sums = f.planes > 0 || f.has_minimums ? groups * sum_count(f.planes) : 0;
    const int64_t factors = f.planes == 1 ? (groups + part_groups(f) - 1) / part_groups(f) : 0;
    return f.depth * (f.planes == 0 ? int64_t(sizeof(float)) : f.planes) + (sums + factors) * int64_t(sizeof(int32_t));
}

// The factors of the parts of a row in one plane.
static float* x_scales(const GroupFormat& f, uint8_t* row) {
    return reinterpret_cast<float*>(row + f.depth) + f.depth / f.group_size;
}
static const float* x_scales(const GroupFormat& f, const uint8_t* row) { return x_scales(f, const_cast<uint8_t*>(row)); }

// Adds a part of K, of rows of x in one plane: times what its values have as a factor. of_part, y: [tokens][TILE]
static void add_part(const GroupFormat& f, const float* of_part, int64_t part, const void* x, int64_t first, int64_t tokens,
                     float* y) {
    for (int64_t t = 0; t < tokens; ++t) {
        const uint8_t* const row = static_cast<const uint8_t*>(x) + (first + t) * x_row_bytes(f);
        const F32 scale = set_float(x_scales(f, row)[part]);
        for (int64_t n = t * TILE; n < (t + 1) * TILE; n += FLOATS) {
            store_float(y + n, multiply_add(load_float(of_part + n), scale, load_float(y + n)));
        }
    }
}

static int64_t x_bytes(const GroupFormat& format, int64_t count) {
    const int64_t rows = count * x_row_bytes(format);
    return (rows + 63) / 64 * 64 + count * int64_t(sizeof(FixedPointRow));
}

static FixedPointRow* x_rows(const GroupFormat& format, int64_t count, void* packed) {
    return reinterpret_cast<FixedPointRow*>(static_cast<uint8_t*>(packed) + (count * x_row_bytes(format) + 63) / 64 * 64);
}

// The stretch of a tile, from its `vector`th vector of rows and its first group on.
static GroupStretch stretch_at(const GroupFormat& f, const Layout& layout, const uint8_t* packed, int64_t tile) {
    GroupStretch s{};
    const int64_t first = tile * layout.groups * TILE;
    s.scales = factors_of_tile(f.scales, layout.scales, packed, tile, layout.groups);
    s.has_minimums = f.has_minimums;
    if (f.has_minimums) s.minimums = factors_of_tile(f.minimums, layout.minimums, packed, tile, layout.groups);
    s.group_units = f.group_size / unit_depth(f.bits);
    s.units = packed + tile * layout.tile_bytes;
    s.unit_stride = layout.unit_stride;
    s.block_stride = layout.block_stride;
    s.zero_points = reinterpret_cast<const int32_t*>(packed + layout.zero_points) + (layout.zero_stride ? first : 0);
    s.zero_stride = layout.zero_stride;
    s.tables = packed + layout.levels;
    s.computed = f.computed != 0;
    return s;
}

// Goes on to group `group`, row `row` of the tile.
static GroupStretch part_of(GroupStretch s, int64_t group, int64_t groups, int64_t row) {
    s.groups = groups;
    s.units += group * s.group_units * s.unit_stride + row / ROWS * s.block_stride + row % ROWS * 4;
    s.scales.advance(group, row);
    if (s.has_minimums) s.minimums.advance(group, row);
    s.zero_points += group * s.zero_stride + row;
    return s;
}

// The same with rows of x, of which `token` is the first.
static void with_x(GroupStretch* s, const GroupFormat& f, const void* packed_x, bool words, int64_t token, int64_t group) {
    const uint8_t* const row = static_cast<const uint8_t*>(packed_x) + token * x_row_bytes(f);
    if (f.planes == 0) {
        s->x = reinterpret_cast<const float*>(row) + group * f.group_size;
        s->x_sums = reinterpret_cast<const float*>(row) + f.depth + group;
        s->x_stride = s->sums_stride = x_row_bytes(f) / int64_t(sizeof(float));
        return;
    }
    s->digits = reinterpret_cast<const int8_t*>(row) + group * f.group_size * (words ? 2 : 1);
    s->sums = reinterpret_cast<const int32_t*>(row + f.planes * f.depth) + group * sum_count(f.planes);
    s->x_stride = x_row_bytes(f);
    s->plane_stride = f.depth;
    s->sums_stride = x_row_bytes(f) / int64_t(sizeof(int32_t));
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
