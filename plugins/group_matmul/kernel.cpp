// Lanes are rows of the weight, so that the scales of 16 rows are one vector, sums stay in their lanes, and x is read
// once for all of them: QIGen's micro-kernel (section 3), with integers in the place of its floats where the processor
// multiplies bytes. A packed weight lies in memory in units (index_units.h):
//
//     [tiles][K / unit][4 blocks][unit]        numbers: of 16 rows, unit·/16 values of K; where vectors have fewer lanes
//                                              than 16, so that micro-kernels read a part of the tile's rows at a time:
//     [tiles][4 blocks][K / unit][unit]
//     scales, minimums                         as group_factors.h packs them
//     [tiles][groups][4 blocks][16] int32      zero points; [4 blocks][16] where all groups have the same
//     levels                                   as levels.h packs them
//
// In a unit, vector v and lane n hold row n of the block: in words the number at k = v, in bytes, of which a row has
// four side by side, those at k = 4·v .. 4·v + 3.
#include "plugins/group_matmul/kernel.h"

#include <stddef.h>

#include "plugins/cpu/cache_blocking.h"
#include "plugins/group_matmul/stretch.h"

#include "micro_kernels/group_levels.h"
#include "micro_kernels/group_matmul.h"  // written by plugins/micro_kernels when the library is built

#include "plugins/group_matmul/many_rows.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

static int32_t planes_for(int32_t activation_bits, int32_t bits, const float* levels) {
#if INTAGLIO_BYTE_PRODUCTS == 4
    if (levels != nullptr && (bits != 4 || step_of(levels) == 0)) return 0;
    return activation_bits == 32 ? 3 : activation_bits / 8;
#elif INTAGLIO_BYTE_PRODUCTS == 2
    if (levels != nullptr) return INTAGLIO_WORDS && activation_bits <= 16 && bits == 4 && step_of(levels) != 0 ? 2 : 0;
    if (bits == 8) return INTAGLIO_WORDS && activation_bits <= 16 ? 2 : 0;  // two products of 8 bits may exceed 16
    return activation_bits <= 16 ? 2 : 3;
#else
    (void)activation_bits, (void)bits, (void)levels;
    return 0;
#endif
}

// Of x in two planes, |x·(q - zero point)| is below 2^(15 + bits): sums of so many stay in 32 bits. One plane has a factor for each
// 256 values of K at most.
static int64_t kernel_group_size(int64_t group_size, int32_t planes, int32_t bits, bool has_levels) {
    if (planes != 1 && planes != 2) return group_size;
    const int64_t longest = planes == 1 ? X_PART : int64_t(1) << (16 - (has_levels ? 8 : bits)), unit = unit_depth(bits) < 16 ? 16 : unit_depth(bits);
    int64_t size = group_size;
    for (int64_t parts = 2; size > longest; ++parts)
        if (group_size % (parts * unit) == 0) size = group_size / parts;
    return size;
}

static int64_t weight_bytes(const GroupFormat& format) { return Layout(format).bytes; }

// Puts the numbers of a row into lane `lane`, or its four bytes, of the units of a block.
template <typename Lane, int BITS>
static void pack_row_of(const uint32_t* words, const Layout& layout, int lane, uint8_t* target) {
    constexpr int DEPTH = unit_depth(BITS);
    for (int64_t first = 0; first < layout.units * DEPTH; first += DEPTH, target += layout.unit_stride) {
#pragma GCC unroll 32
        for (int k = 0; k < DEPTH; ++k) {
            const int value = index_at(words, first + k, BITS);
            if (sizeof(Lane) == 4) {
                put_index<Lane>(target, BITS, k, lane, value);
            } else {
                put_index<Lane>(target, BITS, k / 4, lane * 4 + k % 4, BITS == 8 ? value ^ SIGN : value);
            }
        }
    }
}

template <typename Lane>
static void pack_row(const uint32_t* words, int bits, const Layout& layout, int lane, uint8_t* target) {
    switch (bits) {
        case 2: return pack_row_of<Lane, 2>(words, layout, lane, target);
        case 3: return pack_row_of<Lane, 3>(words, layout, lane, target);
        case 4: return pack_row_of<Lane, 4>(words, layout, lane, target);
        case 5: return pack_row_of<Lane, 5>(words, layout, lane, target);
        case 6: return pack_row_of<Lane, 6>(words, layout, lane, target);
        default: return pack_row_of<Lane, 8>(words, layout, lane, target);
    }
}

static void pack_weight(const GroupFormat& format, const int32_t* numbers, const float* scales, const uint8_t* zero_points,
                        const float* minimums, const float* levels, int64_t begin, int64_t end, void* packed) {
    const Layout layout(format);
    const int bits = format.bits;
    uint8_t* const base = static_cast<uint8_t*>(packed);
    auto* const zeros = reinterpret_cast<int32_t*>(base + layout.zero_points);
    const int less = taken_off(format);
    if (!layout.zero_stride && begin == 0)
        for (int64_t n = 0; n < TILE; ++n) zeros[n] = format.zero_point - less;
    const double step = format.has_levels ? pack_levels(format, levels, base + layout.levels) : 1;
    for (int64_t tile = begin; tile < end; ++tile) {
        uint8_t* const units = base + tile * layout.tile_bytes;
        __builtin_memset(units, 0, size_t(layout.tile_bytes));
        for (int64_t n = 0; n < TILE; ++n) {
            const int64_t row = tile * TILE + n, block = n / ROWS;
            const int lane = int(n % ROWS);
            const bool inside = row < format.rows;
            const auto of = [&](int64_t group) { return (row * layout.groups + group) / format.parts; };
            pack_factors(format.scales, layout.scales, base, tile, layout.groups, n,
                         [&](int64_t group) { return inside ? float(scales[of(group)] * step) : 0; });
            if (format.has_minimums) {
                pack_factors(format.minimums, layout.minimums, base, tile, layout.groups, n, [&](int64_t group) {
                    return inside ? -minimums[group / format.parts * format.rows + row] : 0;
                });
            }
            for (int64_t group = 0; group < layout.groups && layout.zero_stride; ++group)
                zeros[(tile * layout.groups + group) * TILE + n] = inside ? zero_points[of(group)] - less : 0;
            if (!inside) continue;
            const uint32_t* const words = reinterpret_cast<const uint32_t*>(numbers) + row * (format.depth * bits / 32);
            uint8_t* const target = units + block * layout.block_stride;
            if (format.planes == 0) {
                pack_row<uint32_t>(words, bits, layout, lane, target);
            } else {
                pack_row<uint8_t>(words, bits, layout, lane, target);
            }
        }
    }
}

// --- x --------------------------------------------------------------------------------------------------------------

static void pack_x(const GroupFormat& format, const float* x, int64_t count, int64_t begin, int64_t end, void* packed) {
    uint8_t* const base = static_cast<uint8_t*>(packed);
    const int64_t depth = format.depth, size = format.group_size;
    for (int64_t i = begin; i < end; ++i) {
        const float* const source = x + i * depth;
        uint8_t* const target = base + i * x_row_bytes(format);
        int8_t* const digits = reinterpret_cast<int8_t*>(target);
        if (format.planes == 0) {
            __builtin_memcpy(target, source, size_t(depth) * sizeof(float));
            float* const totals = reinterpret_cast<float*>(target) + depth;
            for (int64_t group = 0; group < depth / size && format.has_minimums; ++group) {
                double total = 0;
                for (int64_t k = 0; k < size; ++k) total += source[group * size + k];
                totals[group] = float(total);
            }
            continue;
        }
        FixedPointRow* const row = x_rows(format, count, packed) + i;
        int32_t* const sums = reinterpret_cast<int32_t*>(target + format.planes * depth);
        if (in_words(format, count)) {
            int16_t* const words = reinterpret_cast<int16_t*>(target);
            to_words<4>(source, depth, depth, words, row);
            for (int64_t group = 0; group < depth / size; ++group) {
                sums[group] = 0;
                for (int64_t k = 0; k < size; ++k) sums[group] += words[group * size + k];
            }
            continue;
        }
        if (format.planes == 1) {
            float* const scales = x_scales(format, target);
            const int64_t part = part_groups(format) * size;
            for (int64_t k = 0; k < depth; k += part) {
                const int64_t length = depth - k < part ? depth - k : part;
                to_fixed_point<1>(source + k, length, length, digits + k, row);
                scales[k / part] = float(row->scale);
            }
            row->scale = 1;
        } else if (format.planes == 2) {
            to_fixed_point<2>(source, depth, depth, digits, row);
        } else {
            to_fixed_point<3>(source, depth, depth, digits, row);
        }
        for (int64_t group = 0; group < depth / size; ++group) {
            int32_t totals[3] = {};
            for (int plane = 0; plane < format.planes; ++plane) {
                const int8_t* const part = digits + plane * depth + group * size;
                for (int64_t k = 0; k < size; ++k) totals[plane] += part[k];
            }
            if (format.planes < 3) {
                sums[group] = totals[0] + 256 * totals[1];
            } else {
                __builtin_memcpy(sums + group * format.planes, totals, size_t(format.planes) * sizeof(int32_t));
            }
        }
    }
}

// --- the product ----------------------------------------------------------------------------------------------------

using GroupKernel = MicroKernel<GroupStretch>;

Choice choice(GROUP_MATMUL_MICRO_KERNELS, GROUP_MATMUL_MOST_ROWS);
Choice level_choice(GROUP_LEVELS_MICRO_KERNELS, GROUP_LEVELS_MOST_ROWS);

constexpr int TOKENS = 16;  // rows of x that share what is read of a weight

static const GroupKernel& kernel_for(const GroupFormat& f, int64_t rows) {
    return f.has_levels ? level_choice(f.bits, f.planes, rows) : choice(f.bits, f.planes, rows);
}

static bool prefetches(const GroupFormat& f, const GroupKernel& kernel) {
    return f.has_levels ? level_choice.prefetches(kernel.name, f.group_size) : choice.prefetches(kernel.name, f.group_size);
}

// `tokens` rows of x with one tile, in blocks that stay in the first-level cache. y: [tokens][TILE], zeros
static void tile_product(const GroupFormat& f, const GroupStretch& tile, const CacheBlock& block, const void* x,
                         int64_t first, int tokens, int64_t columns, float* y) {
    const int64_t groups = f.depth / f.group_size, step = block.depth / f.group_size;
    for (int64_t group = 0; group < groups; group += step) {
        const int64_t count = groups - group < step ? groups - group : step;
        for (int64_t begin = 0; begin < columns; begin += block.rows) {
            const int64_t end = begin + block.rows < columns ? begin + block.rows : columns;
            for (int token = 0, rows = 0; token < tokens; token += rows) {
                const GroupKernel& kernel = kernel_for(f, tokens - token);
                const bool prefetch = prefetches(f, kernel);
                rows = kernel.name.rows;
                for (int64_t row = begin; row < end; row += FLOATS * kernel.name.t_u) {
                    GroupStretch stretch = part_of(tile, group, count, row);
                    with_x(&stretch, f, x, in_words(f, 1), first + token, group);
                    stretch.y = y + token * TILE + row;
                    stretch.prefetch = prefetch;
                    kernel.run(stretch);
                }
            }
        }
    }
}

// The same as tile_product with x in one plane, a part of K at a time.
static void tile_product_in_parts(const GroupFormat& f, const GroupStretch& tile, const void* x, int64_t first, int tokens,
                                  int64_t columns, float* y) {
    const int64_t groups = f.depth / f.group_size, step = part_groups(f);
    for (int token = 0, rows = 0; token < tokens; token += rows) {
        const GroupKernel& kernel = kernel_for(f, tokens - token);
        const bool prefetch = prefetches(f, kernel);
        rows = kernel.name.rows;
        for (int64_t group = 0; group < groups; group += step) {
            constexpr int MOST = GROUP_MATMUL_MOST_ROWS[1] > GROUP_LEVELS_MOST_ROWS[1] ? GROUP_MATMUL_MOST_ROWS[1] : GROUP_LEVELS_MOST_ROWS[1];
            alignas(64) float of_part[(MOST > 0 ? MOST : 1) * TILE] = {};
            for (int64_t row = 0; row < columns; row += FLOATS * kernel.name.t_u) {
                GroupStretch stretch = part_of(tile, group, groups - group < step ? groups - group : step, row);
                with_x(&stretch, f, x, false, first + token, group);
                stretch.y = of_part + row;
                stretch.prefetch = prefetch;
                kernel.run(stretch);
            }
            add_part(f, of_part, group / step, x, first + token, rows, y + token * TILE);
        }
    }
}

// Blocks for `count` rows of x. While a tile stays in the second-level cache, blocks for the first-level one bring
// nothing (100 G products/s with them, 106 without, two rows of x, K = 4096, 8 bits); once it takes more than half of it,
// they do (73 against 59 at two rows, 84 against 76 at eight, K = 11008, 8 bits). One row of x reads each weight once.
static CacheBlock cache_block(const GroupFormat& f, const Layout& layout, int64_t count) {
    if (count == 1 || layout.tile_bytes <= second_level_cache() / 2) return {f.depth, TILE};
    const int64_t rows = (f.has_levels ? GROUP_LEVELS_MOST_ROWS : GROUP_MATMUL_MOST_ROWS)[f.planes], x_bits = f.planes == 0 ? 32 : 8 * f.planes;
    return largest_cache_block({x_bits * rows, f.bits, 32 * rows}, f.group_size, f.depth, TILE, TILE);
}

static void run(const GroupFormat& f, const void* x, int64_t count, const void* packed, float* y, int64_t begin,
                int64_t end) {
    const Layout layout(f);
    const auto* const bytes = static_cast<const uint8_t*>(packed);
    const FixedPointRow* const rows = x_rows(f, count, const_cast<void*>(x));
    const CacheBlock block = cache_block(f, layout, count);
    const bool many = many_rows(f, count);
    const int64_t most = many ? MOST_TOKENS : TOKENS;
    alignas(64) float values[MOST_TOKENS * TILE];
#if INTAGLIO_WORDS
    const IeeeDenormals denormals;  // of which levels may be computed
#endif
    for (int64_t tile = begin; tile < end; ++tile) {
        const GroupStretch stretch = stretch_at(f, layout, bytes, tile);
        const int64_t row = tile * TILE, columns = f.rows - row < TILE ? f.rows - row : TILE;
        for (int64_t first = 0; first < count; first += most) {
            const int tokens = int(count - first < most ? count - first : most);
            __builtin_memset(values, 0, size_t(tokens * TILE) * sizeof(float));
            if (many) {
                many_rows_product(f, stretch, x, first, tokens, columns, values);
            } else if (f.planes == 1) {
                tile_product_in_parts(f, stretch, x, first, tokens, columns, values);
            } else {
                tile_product(f, stretch, block, x, first, tokens, columns, values);
            }
            for (int t = 0; t < tokens; ++t) {
                const float factor = f.planes == 0 ? 1 : float(rows[first + t].scale);
                for (int64_t n = 0; n < columns; ++n) y[(first + t) * f.rows + row + n] = values[t * TILE + n] * factor;
            }
        }
    }
}

static bool select(const MicroKernelWish& wish) {
    return wish.name.levels ? level_choice.select(wish) : choice.select(wish);
}

}  // namespace

const GroupMatMulKernel group_matmul_kernel = {planes_for, kernel_group_size, computed_levels, factor_form, weight_bytes, pack_weight, x_bytes, pack_x, run, select};

}  // namespace intaglio::INTAGLIO_ISA
