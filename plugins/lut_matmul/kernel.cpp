#include "plugins/lut_matmul/kernel.h"

#include "plugins/cpu/micro_kernel_choice.h"
#include "plugins/lut_matmul/byte_panels.h"
#include "plugins/lut_matmul/packing.h"
#include "plugins/lut_matmul/stretch.h"
#include "plugins/lut_matmul/word_products.h"

#include "micro_kernels/lut_matmul.h"  // written by plugins/micro_kernels when the library is built

namespace intaglio::INTAGLIO_ISA {
namespace {

Choice choice(LUT_MATMUL_MICRO_KERNELS, LUT_MATMUL_MOST_ROWS);

constexpr int64_t TOKENS = 16;  // rows of x that share what is read of a weight
constexpr int64_t MOST_TOKENS = INTAGLIO_BYTE_PANELS ? 128 : 64;  // that share what is unpacked
constexpr int64_t MOST_SUMS = 4;  // of a value of y: two planes with two tables

// One call of `run`.
struct Product {
    const LutFormat& f;
    const Layout layout;
    const void* x;
    const uint8_t* packed;
    const int64_t planes, x_stride;  // of one row of x, in its elements
    const int64_t sums_stride;       // of one row of x: [tables][planes][BLOCK]

    // All of K.
    void run_in_stretches(const MicroKernel<LutStretch>& kernel, LutStretch s) const {
        const int64_t most = INTAGLIO_WORDS && f.planes > 0 ? WORD_STRETCH : layout.stride;
        for (int64_t k = 0; k < layout.stride; k += most) {
            s.depth = smaller(most, layout.stride - k);
            kernel.run(s);
            s.units += s.depth / unit_indices(f.bits) * ROW_GROUP * unit_bytes(f.bits);
            s.digits += s.depth * planes;
        }
    }

    // Adds a part's sums of a block of y, which are `offset` times the sum of x too large.
    static void add_part(const int32_t* sums, const PartOfRow& part, int32_t offset, float* totals) {
        float values[BLOCK];
        for (int64_t n = 0; n < BLOCK; ++n) values[n] = float(sums[n] - offset * part.sum);
        const F32 scale = set_float(part.scale);
        for (int64_t n = 0; n < BLOCK; n += FLOATS) {
            store_float(totals + n, multiply_add(load_float(values + n), scale, load_float(totals + n)));
        }
    }

    const PartOfRow* parts_of(int64_t token) const {
        return reinterpret_cast<const PartOfRow*>(static_cast<const uint8_t*>(x) + token * x_stride + layout.stride);
    }

    // The same as `multiply` with x in one plane, whose sums are float32.
    void multiply_parts(int64_t begin, int64_t end, int64_t first, int64_t tokens, int32_t* sums) const {
        LutStretch s{};
        s.table_stride = f.tables * table_bytes(f);
        s.x_stride = x_stride;
        s.sums_stride = BLOCK;
        for (int64_t token = 0, rows = 0; token < tokens; token += rows) {
            const MicroKernel<LutStretch>& kernel = choice(f.bits, f.planes, tokens - token);
            rows = kernel.name.rows;
            s.prefetch = choice.prefetches(kernel.name);
            constexpr int ROWS_OF_X = LUT_MATMUL_MOST_ROWS[1] > 0 ? LUT_MATMUL_MOST_ROWS[1] : 1;
            alignas(64) int32_t of_parts[MOST_PARTS][ROWS_OF_X][BLOCK];  // so that the weight is read in its order
            __builtin_memset(of_parts, 0, size_t(layout.parts()) * sizeof of_parts[0]);
            for (int64_t row = begin; row < end; row += kernel.name.t_u) {
                s.tables = tables_of(row, 0);
                for (int64_t part = 0; part < layout.parts(); ++part) {
                    s.depth = smaller(PART, layout.stride - part * PART);
                    s.digits = static_cast<const int8_t*>(x) + (first + token) * x_stride + part * PART;
                    s.units = units_of(row, part * PART);
                    s.sums = of_parts[part][0] + row % BLOCK;
                    kernel.run(s);
                }
            }
            for (int64_t i = 0; i < rows; ++i) {
                float* const totals = reinterpret_cast<float*>(sums + (token + i) * sums_stride);
                for (int64_t part = 0; part < layout.parts(); ++part) {
                    add_part(of_parts[part][i], parts_of(first + token + i)[part], BYTE_OFFSET, totals);
                }
            }
        }
    }

    const uint8_t* units_of(int64_t row, int64_t k) const {
        const int64_t skipped = k / unit_indices(f.bits) * ROW_GROUP * unit_bytes(f.bits);
        return packed + row / ROW_GROUP * layout.group_bytes + row % ROW_GROUP * unit_bytes(f.bits) + skipped;
    }

    const uint8_t* tables_of(int64_t row, int table) const {
        return packed + layout.tables + (row * f.tables + table) * table_bytes(f);
    }

    // Rows `begin` to `end` - 1 of a block with `tokens` rows of x. There is no blocking along K (cache_blocking.h): the
    // 16 rows of a block stay in the second-level cache, and blocks for the first-level one made it 4 to 6 % slower.
    void multiply(int64_t begin, int64_t end, int64_t first, int64_t tokens, int32_t* sums) const {
        LutStretch s{};
        s.table_stride = f.tables * table_bytes(f);
        s.plane_stride = layout.stride;
        s.x_stride = x_stride;
        s.sums_stride = sums_stride;
        for (int64_t token = 0, rows = 0; token < tokens; token += rows) {
            const MicroKernel<LutStretch>& kernel = choice(f.bits, f.planes, tokens - token);
            rows = kernel.name.rows;
            s.prefetch = choice.prefetches(kernel.name);
            s.x = static_cast<const float*>(x) + (first + token) * s.x_stride;
            s.digits = static_cast<const int8_t*>(x) + (first + token) * s.x_stride;
            for (int table = 0; table < f.tables; ++table) {
                for (int64_t row = begin; row < end; row += kernel.name.t_u) {
                    s.units = units_of(row, 0);
                    s.tables = tables_of(row, table);
                    s.sums = sums + token * sums_stride + table * planes * BLOCK + row % BLOCK;
                    run_in_stretches(kernel, s);
                }
            }
        }
    }

#if INTAGLIO_WORDS
    // The same for many rows of x.
    void multiply_words(int64_t begin, int64_t end, int64_t first, int64_t tokens, int32_t* sums) const {
        alignas(64) int16_t words[WORD_ROWS * WORD_PART];
        const auto* const x_words = static_cast<const int16_t*>(x) + first * layout.stride;
        LutStretch s{};
        for (int64_t k = 0; k < layout.stride; k += WORD_PART) {
            s.depth = smaller(WORD_PART, layout.stride - k);
            for (int64_t top = begin; top < end; top += WORD_ROWS) {
                for (int table = 0; table < f.tables; ++table) {
                    for (int64_t row = top; row < top + WORD_ROWS; ++row) {
                        s.units = units_of(row, k);
                        s.tables = tables_of(row, table);
                        lut_words(f.bits, s, words + (row - top) * WORD_PART);
                    }
                    for (int64_t token = 0; token < tokens; token += WORD_TOKENS) {
                        for (int64_t row = top; row < top + WORD_ROWS; row += ROW_GROUP) {
                            const int16_t* const rows = words + (row - top) * WORD_PART;
                            int32_t* const target = sums + token * sums_stride + table * planes * BLOCK + row % BLOCK;
                            const int16_t* const values = x_words + token * layout.stride + k;
                            if (tokens - token == 1) {
                                word_products<BLOCK, 1>(rows, s.depth, values, layout.stride, target, sums_stride);
                            } else {
                                word_products<BLOCK, WORD_TOKENS>(rows, s.depth, values, layout.stride, target, sums_stride);
                            }
                        }
                    }
                }
            }
        }
    }
#endif

#if INTAGLIO_BYTE_PANELS
    // `blocks` blocks, one or two, from row `begin` on, with `tokens` rows of x. sums: [blocks][tokens, sums_stride apart], without
    // BYTE_OFFSET
    void multiply_panel(Multiplier& multiplier, int64_t begin, int64_t blocks, int64_t first, int64_t tokens, int32_t* sums) const {
        alignas(64) int32_t memory[PANEL * (PART / GROUP + 1)], tile[ROWS * PANEL];
        LutStretch s{};
        s.table_stride = f.tables * table_bytes(f);
        for (int64_t part = 0; part < layout.parts(); ++part) {
            s.depth = smaller(PART, layout.stride - part * PART);
            const PackedMatrix panel = packed_matrix(s.depth, PANEL, memory);
            if (blocks == 1) __builtin_memset(panel.data, 0, size_t(panel.groups * PANEL) * sizeof(int32_t));
            for (int table = 0; table < f.tables; ++table) {
                for (int64_t block = 0; block < blocks; ++block) {
                    s.units = units_of(begin + block * BLOCK, part * PART);
                    s.tables = tables_of(begin + block * BLOCK, table);
                    lut_bytes(f.bits, s, layout.group_bytes, reinterpret_cast<uint8_t*>(panel.data + block * BLOCK));
                }
                find_start(panel, 0);
                for (int64_t plane = 0; plane < planes; ++plane) {
                    for (int64_t token = 0; token < tokens; token += ROWS) {
                        const int64_t rows = smaller(ROWS, tokens - token);
                        const int8_t* const digits =
                            static_cast<const int8_t*>(x) + (first + token) * x_stride + plane * layout.stride + part * PART;
                        multiplier(reinterpret_cast<const int32_t*>(digits), x_stride / GROUP, rows, panel.data, panel.groups,
                                   panel.start, tile, PANEL);
                        for (int64_t block = 0; block < blocks; ++block) {
                            int32_t* to = sums + (block * tokens + token) * sums_stride + (table * planes + plane) * BLOCK;
                            for (int64_t row = 0; row < rows; ++row, to += sums_stride) {
                                const int32_t* const from = tile + row * PANEL + block * BLOCK;
                                if (f.planes == 1) {
                                    add_part(from, parts_of(first + token + row)[part], 0, reinterpret_cast<float*>(to));
                                } else {
                                    for (int64_t n = 0; n < BLOCK; ++n) to[n] += from[n];
                                }
                            }
                        }
                    }
                }
            }
        }
    }
#endif
};

// A row's values of one block of y. sums: [tables][planes][BLOCK], which are `offset` times the sum of x too large
template <int PLANES, int TABLES>
static void finish(const int32_t* sums, int32_t offset, const FixedPointRow& row, const float* factors, float* y) {
    for (int64_t n = 0; n < BLOCK; ++n) {
        double total = 0;
        for (int table = TABLES - 1; table >= 0; --table) {
            double integer = 0;
            for (int plane = PLANES - 1; plane >= 0; --plane) {
                integer = integer * 256 + sums[(table * PLANES + plane) * BLOCK + n];
            }
            total = total * 256 + (integer - offset * row.sum);
        }
        y[n] = float(total * (row.scale * factors[n]));
    }
}

static void finish(const LutFormat& f, const int32_t* sums, int32_t offset, const FixedPointRow* row, const float* factors,
                   float* y) {
    if (f.planes == 0) {
        __builtin_memcpy(y, sums, BLOCK * sizeof(float));
    } else if (f.planes == 1) {
        const float* const totals = reinterpret_cast<const float*>(sums);
        for (int64_t n = 0; n < BLOCK; ++n) y[n] = totals[n] * factors[n];
    } else if (f.planes == 3) {
        finish<3, 1>(sums, offset, *row, factors, y);
    } else if (f.tables == 1) {
        finish<2, 1>(sums, offset, *row, factors, y);
    } else {
        finish<2, 2>(sums, offset, *row, factors, y);
    }
}

// Whether so many rows of x are multiplied in panels, or, with AVX2, in words. With VNNI panels are no faster for several planes,
// whose products take longer than the look-ups.
static bool many_rows(const LutFormat& f, int64_t count) {
    if (f.planes == 0) return false;
    if (INTAGLIO_WORDS) return count >= MANY_ROWS;
    if (INTAGLIO_BYTE_PRODUCTS != 4) return INTAGLIO_BYTE_PANELS;
    return INTAGLIO_BYTE_PANELS && (f.planes == 1 || INTAGLIO_TILES) && count >= LEAST_PANEL_ROWS;
}

static int64_t blocks_at_once(const LutFormat& f, int64_t count) { return INTAGLIO_BYTE_PANELS && many_rows(f, count) ? 2 : 1; }

static void run(const LutFormat& f, const void* x, int64_t count, const void* packed, float* y, int64_t begin,
                int64_t end) {
    const Layout layout(f);
    const auto* const x_bytes = static_cast<const uint8_t*>(x);
    const int64_t row_bytes = x_row_bytes(f, layout), element = f.planes == 0 ? int64_t(sizeof(float)) : 1;
    const auto* const x_rows = reinterpret_cast<const FixedPointRow*>(x_bytes + count * row_bytes);
    const int64_t planes = f.planes > 0 ? f.planes : 1, sums_stride = f.tables * planes * BLOCK;
    const Product product = {f, layout, x, static_cast<const uint8_t*>(packed), planes, row_bytes / element, sums_stride};
    const float* const factors = reinterpret_cast<const float*>(product.packed + layout.factors);
    const bool many = many_rows(f, count);
    const int64_t most = many ? MOST_TOKENS : TOKENS, step = blocks_at_once(f, count);
    alignas(64) int32_t sums[MOST_TOKENS * MOST_SUMS * BLOCK * (INTAGLIO_BYTE_PANELS ? 2 : 1)];
    float values[BLOCK];
#if INTAGLIO_BYTE_PANELS
    Multiplier multiplier;
#endif
    for (int64_t block = begin; block < end; block += step) {
        const int64_t blocks = smaller(step, end - block), last = smaller((block + blocks) * BLOCK, f.rows);
        for (int64_t first = 0; first < count; first += most) {
            const int64_t tokens = smaller(count - first, most), top = block * BLOCK;
            __builtin_memset(sums, 0, size_t(blocks * tokens * sums_stride) * sizeof(int32_t));
            int32_t offset = BYTE_OFFSET;
            if (!many) {
                const auto multiply = f.planes == 1 ? &Product::multiply_parts : &Product::multiply;
                (product.*multiply)(top, last, first, tokens, sums);
            } else {
#if INTAGLIO_BYTE_PANELS
                product.multiply_panel(multiplier, top, blocks, first, tokens, sums);
                offset = 0;
#elif INTAGLIO_WORDS
                product.multiply_words(top, top + BLOCK, first, tokens, sums);
#endif
            }
            for (int64_t i = 0; i < blocks * tokens; ++i) {
                const int64_t row = (block + i / tokens) * BLOCK, token = first + i % tokens;
                finish(f, sums + i * sums_stride, offset, x_rows + token, factors + row, values);
                __builtin_memcpy(y + token * f.rows + row, values, size_t(smaller(BLOCK, f.rows - row)) * sizeof(float));
            }
        }
    }
}

static bool select(const MicroKernelWish& wish) { return choice.select(wish); }

}  // namespace

const LutMatMulKernel lut_matmul_kernel = {choose, weight_bytes, pack_weight, x_bytes, pack_x, blocks_at_once, run, select};

}  // namespace intaglio::INTAGLIO_ISA
