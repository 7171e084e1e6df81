// How a packed weight lies in memory: in units of indices (index_units.h). Blocks of 16 rows hold four groups of four
// rows, and a group the first units of its rows, then the second ones, and so on: one stream.
//
//     [blocks][4 groups][units][4 rows][unit]    indices
//     [N filled up][tables][2^bits] bytes        tables: entries with BYTE_OFFSET added; or [N filled up][16] float32, repeated
//     [N filled up] float32                      factors of the rows, where tables are bytes
//
// Lanes go along K: of a unit's indices, number `vector`·lanes + lane lies in `lane`, lanes being 16 words for tables of
// float32 and 64 bytes for tables of bytes.
#pragma once

#include <stdint.h>

#include "plugins/cpu/index_units.h"
#include "plugins/cpu/int8/packing.h"
#include "plugins/lut_matmul/kernel.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t BLOCK = LutMatMulKernel::BLOCK;
constexpr int ROW_GROUP = 4;  // rows whose units lie side by side
constexpr int WORD_PERIOD = 32;  // bytes of a vector, which are widened to two of words
// Of x in words, and entries in bytes: eight sums of so many products have 32 bits.
constexpr int64_t WORD_STRETCH = 2048;

constexpr int64_t LONGEST = 1 << 16;  // K: a sum of products of up to 255·128 stays below 2^31

// Of x in one plane: values with a factor of their own. Whole units of every size.
constexpr int64_t PART = 512, MOST_PARTS = LONGEST / PART;

// What follows the plane for each part: the factor, and the sum of the integers, as FixedPointRow has them.
struct PartOfRow {
    float scale;
    int32_t sum;
};

// Bytes of a table; those of float32 fill a vector.
static int64_t table_bytes(const LutFormat& f) { return f.planes == 0 ? 64 : int64_t(1) << f.bits; }

[[maybe_unused]] static float greater(float a, float b) { return a > b ? a : b; }

// Where things lie, for a format.
struct Layout {
    explicit Layout(const LutFormat& f)
        : units(ceil_divide(f.depth, unit_indices(f.bits))),
          stride(units * unit_indices(f.bits)),
          group_bytes(units * ROW_GROUP * unit_bytes(f.bits)),
          rows(ceil_divide(f.rows, BLOCK) * BLOCK),
          tables(rows / ROW_GROUP * group_bytes),
          factors(tables + rows * f.tables * table_bytes(f)),
          bytes(factors + rows * int64_t(sizeof(float))) {}

    int64_t parts() const { return ceil_divide(stride, PART); }

    int64_t units;        // of a row
    int64_t stride;       // K filled up
    int64_t group_bytes;  // indices of four rows
    int64_t rows;         // N filled up
    int64_t tables, factors, bytes;
};

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
