// A weight, and rows of x, in the form that they are multiplied in.
#pragma once

#include <stddef.h>

#include "plugins/cpu/fixed_point.h"
#include "plugins/cpu/micro_kernel_choice.h"
#include "plugins/lut_matmul/layout.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// --- the weight ------------------------------------------------------------------------------------------------------

// Whether products of four bytes are added up at once, by micro-kernels or in panels.
constexpr bool FOUR_BYTES = INTAGLIO_BYTE_PRODUCTS == 4 || INTAGLIO_TILES;

// Whether tables may be bytes, and x in fixed point of how many bytes: with AVX2 alone it is in words of 16 bits.
static int32_t planes_for(int32_t activation_bits) {
    if (activation_bits == 32) return FOUR_BYTES ? 3 : 0;
    return FOUR_BYTES ? activation_bits / 8 : INTAGLIO_WORDS ? 2 : 0;
}

// The factor with which every entry of a row's table is factor·(-127..127) to float32's last digit, 127 among them;
// 0 where there is none.
static float grid_factor(const float* lut, int entries) {
    float largest = 0;
    for (int i = 0; i < entries; ++i) largest = greater(largest, __builtin_fabsf(lut[i]));
    const double factor = double(largest) / 127;
    if (!(factor > 0) || largest > 3e38f) return largest == 0 ? 1.0f : 0.0f;
    for (int i = 0; i < entries; ++i) {
        const double steps = double(lut[i]) / factor;
        const double error = steps - __builtin_rint(steps);
        if (!(error < 4e-5 && error > -4e-5)) return 0;  // float32 rounds 127 steps, twice, to 2e-5 of one
    }
    return float(factor);
}

static LutFormat choose(const float* lut, int64_t rows, int64_t depth, int32_t bits, int32_t activation_bits) {
    LutFormat format = {bits, 0, 1, depth, rows};
    const int32_t planes = planes_for(activation_bits);
    if (planes == 0) return format;
    bool grid = true, finite = true;
    const int64_t entries = int64_t(1) << bits;
    for (int64_t row = 0; row < rows && grid; ++row) grid = grid_factor(lut + row * entries, int(entries)) > 0;
    for (int64_t i = 0; i < rows * entries; ++i) finite &= __builtin_fabsf(lut[i]) <= 3e38f;
    // Of tables in two bytes each weight is looked up twice, which takes longer than one look-up of float32 in a vector of AVX2.
    const bool two = activation_bits <= 16 && !(INTAGLIO_WORDS && bits < 4);
    if (finite && depth <= LONGEST && (grid || two)) {
        format.planes = grid || planes == 3 ? planes : 2;
        format.tables = grid ? 1 : 2;
    }
    return format;
}

static int64_t weight_bytes(const LutFormat& format) { return Layout(format).bytes; }

static void pack_table(const LutFormat& format, const float* lut, uint8_t* table, float* factor) {
    const int entries = 1 << format.bits;
    *factor = 1;
    if (format.planes == 0) {
        for (int i = 0; i < 16; ++i) reinterpret_cast<float*>(table)[i] = lut[i % entries];
        return;
    }
    float largest = 0;
    for (int i = 0; i < entries; ++i) largest = greater(largest, __builtin_fabsf(lut[i]));
    const double step = double(largest) / (format.tables == 1 ? 127 : largest_fixed(2));
    *factor = float(step);
    for (int i = 0; i < entries; ++i) {
        const int value = step > 0 ? int(__builtin_rint(double(lut[i]) / step)) : 0;
        const int low = int8_t(value);
        table[i] = uint8_t(low + BYTE_OFFSET);
        if (format.tables == 2) table[entries + i] = uint8_t((value - low) / 256 + BYTE_OFFSET);
    }
}

static void pack_weight(const LutFormat& format, const int32_t* indices, const float* lut, int64_t begin, int64_t end,
                        void* packed) {
    const Layout layout(format);
    const int bits = format.bits;
    const int lanes = format.planes == 0 ? 16 : 64;
    uint8_t* const base = static_cast<uint8_t*>(packed);
    for (int64_t row = begin * BLOCK; row < end * BLOCK; ++row) {
        uint8_t* const group = base + row / ROW_GROUP * layout.group_bytes;
        uint8_t* const table = base + layout.tables + row * format.tables * table_bytes(format);
        float* const factor = reinterpret_cast<float*>(base + layout.factors) + row;
        for (int64_t unit = 0; unit < layout.units; ++unit) {
            uint8_t* const target = group + (unit * ROW_GROUP + row % ROW_GROUP) * unit_bytes(bits);
            __builtin_memset(target, 0, size_t(unit_bytes(bits)));
            if (row >= format.rows) continue;
            const uint32_t* const words = reinterpret_cast<const uint32_t*>(indices) + row * (format.depth * bits / 32);
            const int64_t first = unit * unit_indices(bits);
            const int64_t count = format.depth - first < unit_indices(bits) ? format.depth - first : unit_indices(bits);
            for (int i = 0; i < int(count); ++i) {
                const int value = index_at(words, first + i, bits);
                if (format.planes == 0) {
                    put_index<uint32_t>(target, bits, i / lanes, i % lanes, value);
                } else {
                    put_index<uint8_t>(target, bits, i / lanes, i % lanes, value);
                }
            }
        }
        if (row < format.rows) {
            pack_table(format, lut + (row << bits), table, factor);
        } else {
            __builtin_memset(table, 0, size_t(format.tables * table_bytes(format)));
            *factor = 0;
        }
    }
}

// --- x --------------------------------------------------------------------------------------------------------------

// A row of x in fixed point: its planes, and what the sums need, which takes a vector of its own. With one plane each part has a
// factor and a sum, which follow the plane.
static int64_t x_row_bytes(const LutFormat& format, const Layout& layout) {
    if (format.planes == 0) return layout.stride * int64_t(sizeof(float));
    const int64_t parts = format.planes == 1 ? layout.parts() * int64_t(sizeof(PartOfRow)) : 0;
    return format.planes * layout.stride + ceil_divide(parts, 64) * 64;  // micro-kernels want rows aligned
}

static int64_t x_bytes(const LutFormat& format, int64_t count) {
    const Layout layout(format);
    return count * (x_row_bytes(format, layout) + (format.planes < 2 ? 0 : int64_t(sizeof(FixedPointRow))));
}

static void pack_x(const LutFormat& format, const float* x, int64_t count, int64_t begin, int64_t end, void* packed) {
    const Layout layout(format);
    uint8_t* const base = static_cast<uint8_t*>(packed);
    FixedPointRow* const rows = reinterpret_cast<FixedPointRow*>(base + count * x_row_bytes(format, layout));
    for (int64_t i = begin; i < end; ++i) {
        const float* const source = x + i * format.depth;
        uint8_t* const target = base + i * x_row_bytes(format, layout);
        int8_t* const digits = reinterpret_cast<int8_t*>(target);
        if (format.planes == 0) {
            __builtin_memcpy(target, source, size_t(format.depth) * sizeof(float));
            __builtin_memset(target + format.depth * sizeof(float), 0,
                             size_t(layout.stride - format.depth) * sizeof(float));
        } else if (format.planes == 1) {
            PartOfRow* const parts = reinterpret_cast<PartOfRow*>(target + layout.stride);
            for (int64_t part = 0; part < layout.parts(); ++part) {
                const int64_t k = part * PART, left = format.depth > k ? format.depth - k : 0;
                FixedPointRow row;
                to_fixed_point<1>(source + k, smaller(PART, left), smaller(PART, layout.stride - k), digits + k, &row);
                parts[part] = {float(row.scale), int32_t(row.sum)};
            }
        } else if (INTAGLIO_WORDS) {
            to_words<WORD_PERIOD>(source, format.depth, layout.stride, reinterpret_cast<int16_t*>(target), rows + i);
        } else if (format.planes == 2) {
            to_fixed_point<2>(source, format.depth, layout.stride, digits, rows + i);
        } else {
            to_fixed_point<3>(source, format.depth, layout.stride, digits, rows + i);
        }
    }
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
