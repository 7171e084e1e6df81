// How a packed weight lies in memory: in units of indices (index_units.h). Blocks of 16 rows hold four groups of four
// rows, and a group the first units of its rows, then the second ones, and so on: one stream.
//
//     [blocks][4 groups][units][4 rows][unit]    indices
//     [N filled up][tables][64 bytes]            tables: float32 entries, or bytes with 128 added, repeated
//     [N filled up] float32                      factors of the rows, where tables are bytes
//
// Lanes go along K: of a unit's indices, number `vector`·lanes + lane lies in `lane`, lanes being 16 words for tables of
// float32 and 64 bytes for tables of bytes.
#include "plugins/lut_matmul/kernel.h"

#include <stddef.h>

#include "plugins/fixed_point.h"
#include "plugins/index_units.h"
#include "plugins/panel_product.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t BLOCK = LutMatMulKernel::BLOCK;
constexpr int GROUP = PANEL_ROWS;  // rows that share what is read of x
constexpr int TABLE_BYTES = 64;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Where things lie, for a format.
struct Layout {
    explicit Layout(const LutFormat& f)
        : units(ceil_div(f.depth, unit_indices(f.bits))),
          stride(units * unit_indices(f.bits)),
          group_bytes(units * GROUP * unit_bytes(f.bits)),
          rows(ceil_div(f.rows, BLOCK) * BLOCK),
          tables(rows / GROUP * group_bytes),
          factors(tables + rows * f.tables * TABLE_BYTES),
          bytes(factors + rows * int64_t(sizeof(float))) {}

    int64_t units;        // of a row
    int64_t stride;       // K filled up
    int64_t group_bytes;  // indices of four rows
    int64_t rows;         // N filled up
    int64_t tables, factors, bytes;
};

// --- packing --------------------------------------------------------------------------------------------------------

#if defined(__AVX512VNNI__)
// The factor with which every entry of a row's table is factor·(-127..127) to float32's last digit, 127 among them;
// 0 where there is none.
static float grid_factor(const float* lut, int entries) {
    float largest = 0;
    for (int i = 0; i < entries; ++i) largest = __builtin_fmaxf(largest, __builtin_fabsf(lut[i]));
    const double factor = double(largest) / 127;
    if (!(factor > 0) || largest > 3e38f) return largest == 0 ? 1.0f : 0.0f;
    for (int i = 0; i < entries; ++i) {
        const double steps = double(lut[i]) / factor;
        const double error = steps - __builtin_rint(steps);
        if (!(error < 4e-5 && error > -4e-5)) return 0;  // float32 rounds 127 steps, twice, to 2e-5 of one
    }
    return float(factor);
}
#endif

static LutFormat choose(const float* lut, int64_t rows, int64_t depth, int32_t bits, int32_t activation_bits) {
    LutFormat format = {bits, 0, 1, depth, rows};
#if defined(__AVX512VNNI__)
    bool grid = true, finite = true;
    const int64_t entries = int64_t(1) << bits;
    for (int64_t row = 0; row < rows && grid; ++row) grid = grid_factor(lut + row * entries, int(entries)) > 0;
    for (int64_t i = 0; i < rows * entries; ++i) finite &= __builtin_fabsf(lut[i]) <= 3e38f;
    const int64_t longest = 1 << 20;  // 64 bytes at a time, a lane's sum grows by up to 4·255·128: below 2^31
    if (finite && depth < longest && (grid || activation_bits == 16)) {
        format.planes = activation_bits == 16 ? 2 : 3;
        format.tables = grid ? 1 : 2;
    }
#else
    (void)lut, (void)activation_bits;
#endif
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
    for (int i = 0; i < entries; ++i) largest = __builtin_fmaxf(largest, __builtin_fabsf(lut[i]));
    const double step = double(largest) / (format.tables == 1 ? 127 : largest_fixed(2));
    *factor = float(step);
    for (int i = 0; i < TABLE_BYTES; ++i) {
        const int value = step > 0 ? int(__builtin_rint(double(lut[i % entries]) / step)) : 0;
        const int low = int8_t(value);
        table[i] = uint8_t(low + 128);
        if (format.tables == 2) table[TABLE_BYTES + i] = uint8_t((value - low) / 256 + 128);
    }
}

static void pack_weight(const LutFormat& format, const int32_t* indices, const float* lut, int64_t begin, int64_t end,
                        void* packed) {
    const Layout layout(format);
    const int bits = format.bits;
    const int lanes = format.planes == 0 ? 16 : 64;
    uint8_t* const base = static_cast<uint8_t*>(packed);
    for (int64_t row = begin * BLOCK; row < end * BLOCK; ++row) {
        uint8_t* const group = base + row / GROUP * layout.group_bytes;
        uint8_t* const table = base + layout.tables + row * format.tables * TABLE_BYTES;
        float* const factor = reinterpret_cast<float*>(base + layout.factors) + row;
        for (int64_t unit = 0; unit < layout.units; ++unit) {
            uint8_t* const target = group + (unit * GROUP + row % GROUP) * unit_bytes(bits);
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
            __builtin_memset(table, 0, size_t(format.tables) * TABLE_BYTES);
            *factor = 0;
        }
    }
}

// --- x --------------------------------------------------------------------------------------------------------------

// A row of x in fixed point: its planes, and what the sums need, which takes a vector of its own.
static int64_t x_row_bytes(const LutFormat& format, const Layout& layout) {
    return format.planes == 0 ? layout.stride * int64_t(sizeof(float)) : format.planes * layout.stride;
}

static int64_t x_bytes(const LutFormat& format, int64_t count) {
    const Layout layout(format);
    return count * (x_row_bytes(format, layout) + (format.planes == 0 ? 0 : int64_t(sizeof(FixedPointRow))));
}

static void pack_x(const LutFormat& format, const float* x, int64_t count, int64_t begin, int64_t end, void* packed) {
    const Layout layout(format);
    uint8_t* const base = static_cast<uint8_t*>(packed);
    FixedPointRow* const rows = reinterpret_cast<FixedPointRow*>(base + count * x_row_bytes(format, layout));
    for (int64_t i = begin; i < end; ++i) {
        const float* const source = x + i * format.depth;
        uint8_t* const target = base + i * x_row_bytes(format, layout);
        if (format.planes == 0) {
            __builtin_memcpy(target, source, size_t(format.depth) * sizeof(float));
            __builtin_memset(target + format.depth * sizeof(float), 0,
                             size_t(layout.stride - format.depth) * sizeof(float));
        } else if (format.planes == 2) {
            to_fixed_point<2>(source, format.depth, layout.stride, reinterpret_cast<int8_t*>(target), rows + i);
        } else {
            to_fixed_point<3>(source, format.depth, layout.stride, reinterpret_cast<int8_t*>(target), rows + i);
        }
    }
}

// --- tables of float32 ----------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
template <int BITS>
struct FloatTable {
    __m512 entries;
    explicit FloatTable(const float* p) : entries(_mm512_loadu_ps(p)) {}
    INTAGLIO_FLOAT F32 look_up(const FloatTable& t, Words index) { return _mm512_permutexvar_ps(index, t.entries); }
};
#elif defined(__AVX2__)
template <int BITS>
struct FloatTable {
    __m256 low, high;
    explicit FloatTable(const float* p) : low(_mm256_loadu_ps(p)), high(_mm256_loadu_ps(p + 8)) {}
    INTAGLIO_FLOAT F32 look_up(const FloatTable& t, Words index) {
        const __m256 value = _mm256_permutevar8x32_ps(t.low, index);
        if (BITS < 4) return value;
        const __m256 upper = _mm256_permutevar8x32_ps(t.high, index);
        return _mm256_blendv_ps(value, upper, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
    }
};
#else
template <int BITS>
struct FloatTable {
    const float* entries;
    explicit FloatTable(const float* p) : entries(p) {}
    INTAGLIO_FLOAT F32 look_up(const FloatTable& t, Words index) {
        F32 v;
        for (int i = 0; i < FLOATS; ++i) v[i] = t.entries[index[i] & ((1 << BITS) - 1)];
        return v;
    }
};
#endif

// One row of x with one group of rows.
template <int BITS>
static void float_row(const float* x, const uint8_t* group, const uint8_t* tables, int64_t units, float* y) {
    constexpr int VECTORS = unit_indices(BITS) / 16;
    F32 total[GROUP];
    const FloatTable<BITS> table[GROUP] = {
        FloatTable<BITS>(reinterpret_cast<const float*>(tables)), FloatTable<BITS>(reinterpret_cast<const float*>(tables + 64)),
        FloatTable<BITS>(reinterpret_cast<const float*>(tables + 128)), FloatTable<BITS>(reinterpret_cast<const float*>(tables + 192))};
    for (int r = 0; r < GROUP; ++r) total[r] = set_float(0);
    for (int64_t unit = 0; unit < units; ++unit) {
#pragma GCC unroll 32
        for (int vector = 0; vector < VECTORS; ++vector) {
            for (int half = 0; half < 16; half += FLOATS) {
                const F32 value = load_float(x + vector * 16 + half);
#pragma GCC unroll 4
                for (int r = 0; r < GROUP; ++r) {
                    const Words index = word_indices<BITS>(group + r * unit_bytes(BITS) + half * 4, vector);
                    total[r] = multiply_add(FloatTable<BITS>::look_up(table[r], index), value, total[r]);
                }
            }
        }
        x += unit_indices(BITS);
        group += GROUP * unit_bytes(BITS);
    }
    for (int r = 0; r < GROUP; ++r) y[r] = sum(total[r]);
}

// The weights of one group of rows: [4][stride] float32.
template <int BITS>
static void float_unpack(const uint8_t* group, const uint8_t* tables, const Layout& layout, float* panel) {
    for (int r = 0; r < GROUP; ++r) {
        const FloatTable<BITS> table(reinterpret_cast<const float*>(tables + r * TABLE_BYTES));
        float* target = panel + r * layout.stride;
        const uint8_t* source = group + r * unit_bytes(BITS);
        for (int64_t unit = 0; unit < layout.units; ++unit) {
            for (int vector = 0; vector < unit_indices(BITS) / 16; ++vector) {
                for (int half = 0; half < 16; half += FLOATS) {
                    const Words index = word_indices<BITS>(source + half * 4, vector);
                    const F32 value = FloatTable<BITS>::look_up(table, index);
                    __builtin_memcpy(target + vector * 16 + half, &value, sizeof value);
                }
            }
            target += unit_indices(BITS);
            source += GROUP * unit_bytes(BITS);
        }
    }
}

// Writes the sums of a group that lie within the N columns of y.
template <typename Value>
static void put(float* y, int64_t columns, const Value* values) {
    for (int r = 0; r < GROUP && r < columns; ++r) y[r] = float(values[r]);
}

template <int BITS>
static void float_block(const LutFormat& format, const Layout& layout, const float* x, int64_t count,
                        const uint8_t* packed, int64_t block, float* panel, float* y) {
    for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < format.rows; row += GROUP) {
        const uint8_t* const group = packed + row / GROUP * layout.group_bytes;
        const uint8_t* const tables = packed + layout.tables + row * TABLE_BYTES;
        float sums[GROUP][PANEL_ROWS];
        if (count == 1) {
            float_row<BITS>(x, group, tables, layout.units, sums[0]);
            put(y + row, format.rows - row, sums[0]);
            continue;
        }
        float_unpack<BITS>(group, tables, layout, panel);
        int64_t t = 0;
        for (; t + 4 <= count; t += 4) {
            float_panel<4>(panel, layout.stride, x + t * layout.stride, layout.stride, sums);
            for (int i = 0; i < 4; ++i) put(y + (t + i) * format.rows + row, format.rows - row, sums[i]);
        }
        for (; t < count; ++t) {
            float_panel<1>(panel, layout.stride, x + t * layout.stride, layout.stride, sums);
            put(y + t * format.rows + row, format.rows - row, sums[0]);
        }
    }
}

// --- tables of bytes ------------------------------------------------------------------------------------------------

#if defined(__AVX512VNNI__)

// Entries of a table that repeats itself over 64 bytes.
template <int BITS>
INTAGLIO_FLOAT __m512i look_up_bytes(__m512i table, __m512i index) {
#if defined(__AVX512VBMI__)
    return _mm512_permutexvar_epi8(index, table);
#else
    return _mm512_shuffle_epi8(table, _mm512_and_si512(index, _mm512_set1_epi8((1 << BITS) - 1)));
#endif
}

// Four values of y from the sums of a row's planes with four rows of one or two tables.
// sums: [TABLES][PLANES][4]
template <int PLANES, int TABLES>
INTAGLIO_FLOAT void finish(const int32_t (*sums)[PANEL_ROWS], const FixedPointRow& row, const float* factors, double* y) {
    for (int r = 0; r < GROUP; ++r) {
        double total = 0;
        for (int table = TABLES - 1; table >= 0; --table) {
            double integer = 0;
            for (int plane = PLANES - 1; plane >= 0; --plane) integer = integer * 256 + sums[table * PLANES + plane][r];
            total = total * 256 + (integer - 128 * row.sum);
        }
        y[r] = total * (row.scale * factors[r]);
    }
}

// One row of x in fixed point with ROWS of the rows of a group. sums: [PLANES] rows of ROWS, of one table
template <int BITS, int PLANES>
static void byte_row(const int8_t* x, int64_t stride, const uint8_t* group, const uint8_t* tables, int64_t table_stride,
                     int64_t units, int32_t (*sums)[PANEL_ROWS]) {
    constexpr int VECTORS = unit_indices(BITS) / 64;
    __m512i table[GROUP], total[GROUP][PLANES];
    for (int r = 0; r < GROUP; ++r) {
        table[r] = _mm512_load_si512(tables + r * table_stride);
        for (int plane = 0; plane < PLANES; ++plane) total[r][plane] = _mm512_setzero_si512();
    }
    for (int64_t unit = 0; unit < units; ++unit) {
#pragma GCC unroll 8
        for (int vector = 0; vector < VECTORS; ++vector) {
            __m512i value[PLANES];
#pragma GCC unroll 3
            for (int plane = 0; plane < PLANES; ++plane) {
                value[plane] = _mm512_load_si512(x + plane * stride + vector * 64);
                keep(value[plane]);
            }
#pragma GCC unroll 4
            for (int r = 0; r < GROUP; ++r) {
                const __m512i w = look_up_bytes<BITS>(table[r], byte_indices<BITS>(group + r * unit_bytes(BITS), vector));
#pragma GCC unroll 3
                for (int plane = 0; plane < PLANES; ++plane) {
                    total[r][plane] = _mm512_dpbusd_epi32(total[r][plane], w, value[plane]);
                }
            }
        }
        x += unit_indices(BITS);
        group += GROUP * unit_bytes(BITS);
    }
    for (int plane = 0; plane < PLANES; ++plane) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(sums[plane]),
                         sums_of(total[0][plane], total[1][plane], total[2][plane], total[3][plane]));
    }
}

// The entries of one group of rows from one table: [4][stride] uint8.
template <int BITS>
static void byte_unpack(const uint8_t* group, const uint8_t* tables, int64_t table_stride, const Layout& layout,
                        uint8_t* panel) {
    for (int r = 0; r < GROUP; ++r) {
        const __m512i table = _mm512_load_si512(tables + r * table_stride);
        uint8_t* target = panel + r * layout.stride;
        const uint8_t* source = group + r * unit_bytes(BITS);
        for (int64_t unit = 0; unit < layout.units; ++unit) {
            for (int vector = 0; vector < unit_indices(BITS) / 64; ++vector) {
                _mm512_store_si512(target + vector * 64, look_up_bytes<BITS>(table, byte_indices<BITS>(source, vector)));
            }
            target += unit_indices(BITS);
            source += GROUP * unit_bytes(BITS);
        }
    }
}

template <int BITS, int PLANES, int TABLES>
static void byte_block(const LutFormat& format, const Layout& layout, const int8_t* x, const FixedPointRow* rows,
                       int64_t count, const uint8_t* packed, int64_t block, uint8_t* panel, float* y) {
    constexpr int TOKENS = PLANES == 2 ? 2 : 1;  // at once
    const float* const factors = reinterpret_cast<const float*>(packed + layout.factors);
    const int64_t first = block * BLOCK;
    const int64_t panel_bytes = GROUP * layout.stride;
    const int64_t groups = ceil_div(format.rows - first < BLOCK ? format.rows - first : BLOCK, GROUP);
    int32_t sums[TABLES * PLANES * TOKENS][PANEL_ROWS];
    double values[GROUP];
    if (count == 1) {
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t row = first + g * GROUP;
            const uint8_t* const group = packed + row / GROUP * layout.group_bytes;
            const uint8_t* const tables = packed + layout.tables + row * TABLES * TABLE_BYTES;
            for (int table = 0; table < TABLES; ++table) {
                byte_row<BITS, PLANES>(x, layout.stride, group, tables + table * TABLE_BYTES, TABLES * TABLE_BYTES,
                                       layout.units, sums + table * PLANES);
            }
            finish<PLANES, TABLES>(sums, rows[0], factors + row, values);
            put(y + row, format.rows - row, values);
        }
        return;
    }
    for (int64_t g = 0; g < groups; ++g) {
        const int64_t row = first + g * GROUP;
        for (int table = 0; table < TABLES; ++table) {
            byte_unpack<BITS>(packed + row / GROUP * layout.group_bytes,
                              packed + layout.tables + (row * TABLES + table) * TABLE_BYTES, TABLES * TABLE_BYTES, layout,
                              panel + (g * TABLES + table) * panel_bytes);
        }
    }
    for (int64_t t = 0; t < count; t += TOKENS) {
        const int8_t* const planes = x + t * PLANES * layout.stride;
        const int tokens = count - t < TOKENS ? int(count - t) : TOKENS;
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t row = first + g * GROUP;
            for (int table = 0; table < TABLES; ++table) {
                const uint8_t* const w = panel + (g * TABLES + table) * panel_bytes;
                int32_t part[PLANES * TOKENS][PANEL_ROWS];
                if (tokens == TOKENS) {
                    byte_panel<PLANES * TOKENS>(w, layout.stride, planes, part);
                } else {
                    byte_panel<PLANES>(w, layout.stride, planes, part);
                }
                for (int token = 0; token < tokens; ++token) {
                    for (int plane = 0; plane < PLANES; ++plane) {
                        __builtin_memcpy(sums[(token * TABLES + table) * PLANES + plane], part[token * PLANES + plane],
                                         sizeof part[0]);
                    }
                }
            }
            for (int token = 0; token < tokens; ++token) {
                finish<PLANES, TABLES>(sums + token * TABLES * PLANES, rows[t + token], factors + row, values);
                put(y + (t + token) * format.rows + row, format.rows - row, values);
            }
        }
    }
}

#endif

// --- which of them --------------------------------------------------------------------------------------------------

static int64_t scratch_bytes(const LutFormat& format, int64_t count) {
    if (count == 1) return 0;
    const Layout layout(format);
    return format.planes == 0 ? GROUP * layout.stride * int64_t(sizeof(float)) : BLOCK * format.tables * layout.stride;
}

template <int BITS>
static void run_bits(const LutFormat& format, const void* x, int64_t count, const uint8_t* packed, void* scratch, float* y,
                     int64_t begin, int64_t end) {
    const Layout layout(format);
    for (int64_t block = begin; block < end; ++block) {
#if defined(__AVX512VNNI__)
        if (format.planes > 0) {
            const int8_t* const planes = static_cast<const int8_t*>(x);
            const auto* const rows = reinterpret_cast<const FixedPointRow*>(planes + count * x_row_bytes(format, layout));
            uint8_t* const panel = static_cast<uint8_t*>(scratch);
            if (format.planes == 2 && format.tables == 2) {
                byte_block<BITS, 2, 2>(format, layout, planes, rows, count, packed, block, panel, y);
            } else if (format.planes == 2) {
                byte_block<BITS, 2, 1>(format, layout, planes, rows, count, packed, block, panel, y);
            } else {
                byte_block<BITS, 3, 1>(format, layout, planes, rows, count, packed, block, panel, y);
            }
            continue;
        }
#endif
        float_block<BITS>(format, layout, static_cast<const float*>(x), count, packed, block, static_cast<float*>(scratch),
                          y);
    }
}

static void run(const LutFormat& format, const void* x, int64_t count, const void* packed, void* scratch, float* y,
                int64_t begin, int64_t end) {
    const auto* const bytes = static_cast<const uint8_t*>(packed);
    switch (format.bits) {
        case 2: return run_bits<2>(format, x, count, bytes, scratch, y, begin, end);
        case 3: return run_bits<3>(format, x, count, bytes, scratch, y, begin, end);
        default: return run_bits<4>(format, x, count, bytes, scratch, y, begin, end);
    }
}

}  // namespace

const LutMatMulKernel lut_matmul_kernel = {choose, weight_bytes, pack_weight, x_bytes, pack_x, scratch_bytes, run};

}  // namespace intaglio::INTAGLIO_ISA
