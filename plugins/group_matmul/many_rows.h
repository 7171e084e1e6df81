// Products with many rows of x: a part of a tile's weight is unpacked once, and multiplied with all of them from the cache.
#pragma once

#include "plugins/group_matmul/byte_products.h"
#include "plugins/group_matmul/float_products.h"
#include "plugins/group_matmul/stretch.h"
#include "plugins/group_matmul/word_products.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int MOST_TOKENS = 64;  // rows of x that share what is unpacked

// From how many on that is faster. Bytes are unpacked fast: what is shared is more with minimums, or groups of 16, than with groups
// of 32 and 64, and nothing with larger ones.
static bool many_rows(const GroupFormat& f, int64_t count) {
    if (INTAGLIO_WORDS) return count >= 3 && (f.planes == 2 ? f.group_size <= WORD_DEPTH : f.has_levels);
    if (!INTAGLIO_BYTE_PANELS || f.planes == 0 || f.planes == 3) return false;
    if (f.planes == 1) return f.group_size <= BYTE_PART && count >= 8;
    if (f.group_size > 64) return false;
    return count >= (f.has_minimums || f.group_size < 32 ? 8 : 32);
}

// x in words of 16 bits instead of two planes of bytes: numbers and levels of 8 bits would be too large for sums of two products,
// and with many rows of x words are faster.
static bool in_words(const GroupFormat& f, int64_t count) {
    return INTAGLIO_WORDS && f.planes == 2 && (f.bits == 8 || f.has_levels || many_rows(f, count));
}

#if INTAGLIO_WORDS

// `tokens` rows of x with one tile. y: [tokens][TILE], zeros
static void word_product(const GroupFormat& f, const GroupStretch& tile, const void* x, int64_t first, int tokens, int64_t columns,
                         float* y) {
    const int64_t groups = f.depth / f.group_size, step = f.group_size < WORD_PART ? WORD_PART / f.group_size : 1;
    WordPart part;
    part.group_size = f.group_size;
    part.has_minimums = f.has_minimums;
    for (int64_t group = 0; group < groups; group += step) {
        part.groups = groups - group < step ? groups - group : step;
        for (int64_t row = 0; row < columns; row += WORD_ROWS) {
            GroupStretch stretch = part_of(tile, group, part.groups, row);
            for (int64_t i = 0; i < part.groups; ++i) {
                const uint8_t* const units = stretch.units + i * stretch.group_units * stretch.unit_stride;
                const int32_t* const zero_points = stretch.zero_points + i * stretch.zero_stride;
                int16_t* const words = part.words + i * f.group_size * WORD_ROWS;
                if (f.has_levels) {
                    group_level_words(units, stretch.group_units, zero_points, stretch, words);
                } else {
                    group_words(f.bits, units, stretch.group_units, zero_points, words);
                }
                for (int half = 0; half < WORD_ROWS; half += FLOATS) {
                    store_float(part.scales[i] + half, load_factors(stretch.scales, i, half));
                    if (f.has_minimums) store_float(part.minimums[i] + half, load_factors(stretch.minimums, i, half));
                }
            }
            for (int token = 0; token < tokens; token += WORD_TOKENS) {
                with_x(&stretch, f, x, true, first + token, group);
                const WordX rows = {reinterpret_cast<const int16_t*>(stretch.digits), stretch.x_stride / 2, stretch.sums, stretch.sums_stride};
                float* const target = y + token * TILE + row;
                switch (tokens - token) {
                    case 1: word_products<1>(part, rows, target, TILE); break;
                    case 2: word_products<2>(part, rows, target, TILE); break;
                    case 3: word_products<3>(part, rows, target, TILE); break;
                    default: word_products<WORD_TOKENS>(part, rows, target, TILE);
                }
            }
        }
    }
}

// The same for levels and x in float32.
static void level_product(const GroupFormat& f, const GroupStretch& tile, const void* x, int64_t first, int tokens, int64_t columns,
                          float* y) {
    FloatPart part;
    alignas(64) float totals[MOST_TOKENS * FLOAT_ROWS];
    for (int64_t group = 0; group < f.depth / f.group_size; ++group) {
        for (int64_t row = 0; row < columns; row += FLOAT_ROWS) {
            GroupStretch stretch = part_of(tile, group, 1, row);
            for (int half = 0; half < FLOAT_ROWS; half += FLOATS) store_float(part.scales + half, load_factors(stretch.scales, 0, half));
            with_x(&stretch, f, x, false, first, group);
            for (int64_t k = 0; k < f.group_size; k += part.depth) {
                part.depth = f.group_size - k < FLOAT_DEPTH ? f.group_size - k : FLOAT_DEPTH;
                part.starts = k == 0;
                part.ends = k + part.depth == f.group_size;
                const int64_t units = part.depth / unit_depth(f.bits);
                group_level_floats(f.bits, stretch, units, part.floats);
                stretch.units += units * stretch.unit_stride;
                for (int token = 0; token < tokens; token += FLOAT_TOKENS) {
                    const float* const values = stretch.x + token * stretch.x_stride + k;
                    float *const sums = totals + token * FLOAT_ROWS, *const target = y + token * TILE + row;
                    switch (tokens - token) {
                        case 1: float_products<1>(part, values, stretch.x_stride, sums, target, TILE); break;
                        case 2: float_products<2>(part, values, stretch.x_stride, sums, target, TILE); break;
                        case 3: float_products<3>(part, values, stretch.x_stride, sums, target, TILE); break;
                        default: float_products<FLOAT_TOKENS>(part, values, stretch.x_stride, sums, target, TILE);
                    }
                }
            }
        }
    }
}

static void many_rows_product(const GroupFormat& f, const GroupStretch& tile, const void* x, int64_t first, int tokens,
                              int64_t columns, float* y) {
    if (f.planes == 2) {
        word_product(f, tile, x, first, tokens, columns, y);
    } else {
        level_product(f, tile, x, first, tokens, columns, y);
    }
}

#elif INTAGLIO_BYTE_PANELS

static_assert(BYTE_PART == X_PART, "what is unpacked together has a factor of x");

// `tokens` rows of x with one tile. y: [tokens][TILE], zeros
static void many_rows_product(const GroupFormat& f, const GroupStretch& tile, const void* x, int64_t first, int tokens,
                              int64_t columns, float* y) {
    const int64_t groups = f.depth / f.group_size, step = BYTE_PART / f.group_size;
    const bool one_plane = f.planes == 1;  // a factor of each part's own
    alignas(64) float of_part[MOST_TOKENS * TILE];
    BytePart part;
    part.group_size = f.group_size;
    part.has_minimums = f.has_minimums;
    part.pairs = (columns + PAIR_ROWS - 1) / PAIR_ROWS;
    for (int64_t group = 0; group < groups; group += step) {
        part.groups = groups - group < step ? groups - group : step;
        GroupStretch stretch = part_of(tile, group, part.groups, 0);
        part.zero_points = stretch.zero_points;
        part.zero_stride = stretch.zero_stride;
        for (int64_t i = 0; i < part.groups; ++i) {
            for (int64_t block = 0; block < 2 * part.pairs; ++block) {
                const uint8_t* const units = stretch.units + i * stretch.group_units * stretch.unit_stride + block * stretch.block_stride;
                uint8_t* const bytes = part.bytes_of(i, block / 2) + block % 2 * 64;
                if (f.has_levels) {
                    group_level_bytes(units, stretch.group_units, stretch, bytes);
                } else {
                    group_bytes(f.bits, units, stretch.group_units, stretch, bytes);
                }
                store_float(part.scales[i] + block * ROWS, load_factors(stretch.scales, i, block * ROWS));
                if (f.has_minimums) store_float(part.minimums[i] + block * ROWS, load_factors(stretch.minimums, i, block * ROWS));
            }
        }
        float* const sums = one_plane ? of_part : y;
        if (one_plane) __builtin_memset(of_part, 0, size_t(tokens * TILE) * sizeof(float));
        const auto multiply = one_plane ? byte_products_of<1, 2 * BYTE_TOKENS> : byte_products_of<2, BYTE_TOKENS>;
        for (int token = 0; token < tokens; token += one_plane ? 2 * BYTE_TOKENS : BYTE_TOKENS) {
            with_x(&stretch, f, x, false, first + token, group);
            const ByteX rows = {stretch.digits, stretch.x_stride, stretch.plane_stride, stretch.sums, stretch.sums_stride};
            multiply(tokens - token, part, rows, sums + token * TILE, TILE);
        }
        if (one_plane) add_part(f, of_part, group / step, x, first, tokens, y);
    }
}

#else

static void many_rows_product(const GroupFormat&, const GroupStretch&, const void*, int64_t, int, int64_t, float*) {}

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
