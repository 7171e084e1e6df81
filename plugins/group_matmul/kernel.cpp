// Lanes are rows of the weight, so that the scales of 16 rows are one vector, sums stay in their lanes, and x is read
// once for all of them: QIGen's micro-kernel (section 3), with integers in the place of its floats where the processor
// multiplies bytes. A packed weight lies in memory in units (index_units.h):
//
//     [tiles][K / unit][4 blocks][unit]        numbers: of 16 rows, unit·/16 values of K
//     [tiles][groups][4 blocks][16] float32    scales
//     [tiles][groups][4 blocks][16] int32      zero points
//
// In a unit, vector v and lane n hold row n of the block: in words the number at k = v, in bytes, of which a row has
// four side by side, those at k = 4·v .. 4·v + 3.
#include "plugins/group_matmul/kernel.h"

#include <stddef.h>

#include "plugins/fixed_point.h"
#include "plugins/index_units.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int ROWS = 16;  // of a block
constexpr int64_t TILE = GroupMatMulKernel::TILE;
constexpr int BLOCKS = int(TILE) / ROWS;

constexpr int unit_depth(int bits) { return unit_indices(bits) / ROWS; }  // values of K: 4 to 32

struct Layout {
    explicit Layout(const GroupFormat& f)
        : units(f.depth / unit_depth(f.bits)),
          groups(f.depth / f.group_size),
          tiles((f.rows + TILE - 1) / TILE),
          tile_bytes(units * BLOCKS * unit_bytes(f.bits)),
          scales(tiles * tile_bytes),
          zero_points(scales + tiles * groups * TILE * int64_t(sizeof(float))),
          bytes(zero_points + tiles * groups * TILE * int64_t(sizeof(int32_t))) {}

    int64_t units;   // of a row's K
    int64_t groups;  // of a row
    int64_t tiles;
    int64_t tile_bytes;
    int64_t scales, zero_points, bytes;
};

static int32_t planes_for(int32_t activation_bits) {
#if defined(__AVX512VNNI__)
    return activation_bits == 16 ? 2 : 3;
#else
    (void)activation_bits;
    return 0;
#endif
}

static int64_t weight_bytes(const GroupFormat& format) { return Layout(format).bytes; }

static void pack_weight(const GroupFormat& format, const int32_t* numbers, const float* scales,
                        const uint8_t* zero_points, int64_t begin, int64_t end, void* packed) {
    const Layout layout(format);
    const int bits = format.bits;
    uint8_t* const base = static_cast<uint8_t*>(packed);
    for (int64_t tile = begin; tile < end; ++tile) {
        uint8_t* const units = base + tile * layout.tile_bytes;
        __builtin_memset(units, 0, size_t(layout.tile_bytes));
        for (int64_t n = 0; n < TILE; ++n) {
            const int64_t row = tile * TILE + n, block = n / ROWS;
            const int lane = int(n % ROWS);
            for (int64_t group = 0; group < layout.groups; ++group) {
                const int64_t at = (tile * layout.groups + group) * TILE + n, from = row * layout.groups + group;
                const bool inside = row < format.rows;
                reinterpret_cast<float*>(base + layout.scales)[at] = inside ? scales[from] : 0;
                reinterpret_cast<int32_t*>(base + layout.zero_points)[at] =
                    inside && zero_points ? zero_points[from] : 1 << (bits - 1);
            }
            if (row >= format.rows) continue;
            const uint32_t* const words = reinterpret_cast<const uint32_t*>(numbers) + row * (format.depth * bits / 32);
            for (int64_t k = 0; k < format.depth; ++k) {
                const int64_t unit = k / unit_depth(bits);
                const int within = int(k % unit_depth(bits)), value = index_at(words, k, bits);
                uint8_t* const target = units + (unit * BLOCKS + block) * unit_bytes(bits);
                if (format.planes == 0) {
                    put_index<uint32_t>(target, bits, within, lane, value);
                } else {
                    put_index<uint8_t>(target, bits, within / 4, lane * 4 + within % 4, value);
                }
            }
        }
    }
}

// --- x --------------------------------------------------------------------------------------------------------------

// Of a row of x in fixed point: [planes][K] int8, then [groups][planes] int32, the sums of each group.
static int64_t x_row_bytes(const GroupFormat& f) {
    const int64_t bytes = f.planes * (f.depth + f.depth / f.group_size * int64_t(sizeof(int32_t)));
    return f.planes == 0 ? f.depth * int64_t(sizeof(float)) : bytes;
}

static int64_t x_bytes(const GroupFormat& format, int64_t count) {
    const int64_t rows = count * x_row_bytes(format);
    return (rows + 63) / 64 * 64 + count * int64_t(sizeof(FixedPointRow));
}

static FixedPointRow* x_rows(const GroupFormat& format, int64_t count, void* packed) {
    return reinterpret_cast<FixedPointRow*>(static_cast<uint8_t*>(packed) + (count * x_row_bytes(format) + 63) / 64 * 64);
}

static void pack_x(const GroupFormat& format, const float* x, int64_t count, int64_t begin, int64_t end, void* packed) {
    uint8_t* const base = static_cast<uint8_t*>(packed);
    const int64_t depth = format.depth, size = format.group_size;
    for (int64_t i = begin; i < end; ++i) {
        const float* const source = x + i * depth;
        uint8_t* const target = base + i * x_row_bytes(format);
        int8_t* const digits = reinterpret_cast<int8_t*>(target);
        if (format.planes == 0) {
            __builtin_memcpy(target, source, size_t(depth) * sizeof(float));
            continue;
        }
        FixedPointRow* const row = x_rows(format, count, packed) + i;
        if (format.planes == 2) {
            to_fixed_point<2>(source, depth, depth, digits, row);
        } else {
            to_fixed_point<3>(source, depth, depth, digits, row);
        }
        int32_t* const sums = reinterpret_cast<int32_t*>(target + format.planes * depth);
        for (int64_t group = 0; group < depth / size; ++group) {
            for (int plane = 0; plane < format.planes; ++plane) {
                const int8_t* const part = digits + plane * depth + group * size;
                int32_t total = 0;
                for (int64_t k = 0; k < size; ++k) total += part[k];
                sums[group * format.planes + plane] = total;
            }
        }
    }
}

// --- x in float32 ---------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
INTAGLIO_FLOAT Words load_integers(const int32_t* p) { return _mm512_loadu_si512(p); }
template <int BITS>
INTAGLIO_FLOAT F32 steps(Words numbers, Words zero_point) {
    const Words masked = _mm512_and_si512(numbers, _mm512_set1_epi32((1 << BITS) - 1));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(masked, zero_point));
}
#elif defined(__AVX2__)
INTAGLIO_FLOAT Words load_integers(const int32_t* p) { return load_words(reinterpret_cast<const uint8_t*>(p)); }
template <int BITS>
INTAGLIO_FLOAT F32 steps(Words numbers, Words zero_point) {
    const Words masked = _mm256_and_si256(numbers, _mm256_set1_epi32((1 << BITS) - 1));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(masked, zero_point));
}
#else
INTAGLIO_FLOAT Words load_integers(const int32_t* p) { return load_words(reinterpret_cast<const uint8_t*>(p)); }
template <int BITS>
INTAGLIO_FLOAT F32 steps(Words numbers, Words zero_point) {
    const Words difference = (numbers & ((1u << BITS) - 1)) - zero_point;
    F32 value;
    for (int i = 0; i < FLOATS; ++i) value[i] = float(int32_t(difference[i]));
    return value;
}
#endif

// Where one tile's numbers, scales and zero points lie.
struct Tile {
    const uint8_t* units;
    const float* scales;
    const int32_t* zero_points;
};

static Tile tile_at(const Layout& layout, const uint8_t* packed, int64_t tile) {
    const int64_t first = tile * layout.groups * TILE;
    return {packed + tile * layout.tile_bytes, reinterpret_cast<const float*>(packed + layout.scales) + first,
            reinterpret_cast<const int32_t*>(packed + layout.zero_points) + first};
}

// TOKENS rows of x with FLOATS rows of a block, of which `first` is the first. x: [TOKENS][depth]; y: [TOKENS][rows]
template <int BITS, int TOKENS>
static void float_lanes(const GroupFormat& f, const Layout& layout, const Tile& tile, int block, int first, const float* x,
                        float (*y)[TILE]) {
    F32 total[TOKENS];
    for (int t = 0; t < TOKENS; ++t) total[t] = set_float(0);
    const uint8_t* unit = tile.units + block * unit_bytes(BITS) + first * 4;
    const int64_t group_units = f.group_size / unit_depth(BITS);
    for (int64_t group = 0; group < layout.groups; ++group) {
        const int64_t at = group * TILE + block * ROWS + first;
        const Words zero_point = load_integers(tile.zero_points + at);
        F32 part[TOKENS];
        for (int t = 0; t < TOKENS; ++t) part[t] = set_float(0);
        for (int64_t u = 0; u < group_units; ++u) {
#pragma GCC unroll 32
            for (int v = 0; v < unit_depth(BITS); ++v) {
                const F32 w = steps<BITS>(word_indices<BITS>(unit, v), zero_point);
#pragma GCC unroll 4
                for (int t = 0; t < TOKENS; ++t) part[t] = multiply_add(w, set_float(x[t * f.depth + v]), part[t]);
            }
            unit += BLOCKS * unit_bytes(BITS);
            x += unit_depth(BITS);
        }
        const F32 scale = load_float(tile.scales + at);
        for (int t = 0; t < TOKENS; ++t) total[t] = multiply_add(part[t], scale, total[t]);
    }
    for (int t = 0; t < TOKENS; ++t) __builtin_memcpy(y[t] + block * ROWS + first, &total[t], sizeof(F32));
}

template <int BITS, int TOKENS>
static void float_tile(const GroupFormat& f, const Layout& layout, const Tile& tile, int blocks, const float* x,
                       float (*y)[TILE]) {
    for (int block = 0; block < blocks; ++block) {
        for (int first = 0; first < ROWS; first += FLOATS) {
            float_lanes<BITS, TOKENS>(f, layout, tile, block, first, x, y);
        }
    }
}

// --- x in fixed point -----------------------------------------------------------------------------------------------

#if defined(__AVX512VNNI__)

// TOKENS rows of x with COUNT blocks of a tile, from `block` on. x: rows that lie `x_stride` bytes apart
template <int BITS, int PLANES, int COUNT, int TOKENS>
static void byte_blocks(const GroupFormat& f, const Layout& layout, const Tile& tile, int block, const int8_t* x,
                        int64_t x_stride, const FixedPointRow* rows, float (*y)[TILE]) {
    __m512 total[TOKENS][COUNT];
    for (int t = 0; t < TOKENS; ++t) {
        for (int b = 0; b < COUNT; ++b) total[t][b] = _mm512_setzero_ps();
    }
    const uint8_t* unit = tile.units + block * unit_bytes(BITS);
    const int64_t group_units = f.group_size / unit_depth(BITS);
    const __m512i mask = _mm512_set1_epi8(char((1 << BITS) - 1));
    const int8_t* digits = x;
    for (int64_t group = 0; group < layout.groups; ++group) {
        __m512i part[TOKENS][COUNT][PLANES];
        for (int t = 0; t < TOKENS; ++t) {
            for (int b = 0; b < COUNT; ++b) {
                for (int plane = 0; plane < PLANES; ++plane) part[t][b][plane] = _mm512_setzero_si512();
            }
        }
        for (int64_t u = 0; u < group_units; ++u) {
#pragma GCC unroll 8
            for (int v = 0; v < unit_depth(BITS) / 4; ++v) {
                __m512i w[COUNT];
#pragma GCC unroll 4
                for (int b = 0; b < COUNT; ++b) {
                    w[b] = byte_indices<BITS>(unit + b * unit_bytes(BITS), v);
                    if (BITS < 8) w[b] = _mm512_and_si512(w[b], mask);
                }
#pragma GCC unroll 4
                for (int t = 0; t < TOKENS; ++t) {
#pragma GCC unroll 3
                    for (int plane = 0; plane < PLANES; ++plane) {
                        int32_t four;
                        __builtin_memcpy(&four, digits + t * x_stride + plane * f.depth + 4 * v, 4);
                        const __m512i value = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                        for (int b = 0; b < COUNT; ++b) {
                            part[t][b][plane] = _mm512_dpbusd_epi32(part[t][b][plane], w[b], value);
                        }
                    }
                }
            }
            unit += BLOCKS * unit_bytes(BITS);
            digits += unit_depth(BITS);
        }
        for (int b = 0; b < COUNT; ++b) {
            const int64_t at = group * TILE + (block + b) * ROWS;
            const __m512i zero_point = _mm512_loadu_si512(tile.zero_points + at);
            const __m512 scale = _mm512_loadu_ps(tile.scales + at);
            for (int t = 0; t < TOKENS; ++t) {
                int32_t sums[PLANES];
                __builtin_memcpy(sums, x + t * x_stride + PLANES * f.depth + group * sizeof sums, sizeof sums);
                __m512 value = _mm512_setzero_ps();
                for (int plane = PLANES - 1; plane >= 0; --plane) {
                    const __m512i offset = _mm512_mullo_epi32(zero_point, _mm512_set1_epi32(sums[plane]));
                    const __m512 digit = _mm512_cvtepi32_ps(_mm512_sub_epi32(part[t][b][plane], offset));
                    value = _mm512_fmadd_ps(value, _mm512_set1_ps(256), digit);
                }
                total[t][b] = _mm512_fmadd_ps(value, scale, total[t][b]);
            }
        }
    }
    for (int t = 0; t < TOKENS; ++t) {
        const __m512 factor = _mm512_set1_ps(float(rows[t].scale));
        for (int b = 0; b < COUNT; ++b) {
            _mm512_storeu_ps(y[t] + (block + b) * ROWS, _mm512_mul_ps(total[t][b], factor));
        }
    }
}

template <int BITS, int PLANES, int TOKENS>
static void byte_tile(const GroupFormat& f, const Layout& layout, const Tile& tile, int blocks, const int8_t* x,
                      int64_t x_stride, const FixedPointRow* rows, float (*y)[TILE]) {
    constexpr int COUNT = TOKENS == 1 ? 4 : 2;  // blocks whose sums fit into the registers
    int block = 0;
    for (; block + COUNT <= blocks; block += COUNT) {
        byte_blocks<BITS, PLANES, COUNT, TOKENS>(f, layout, tile, block, x, x_stride, rows, y);
    }
    for (; block < blocks; ++block) {
        byte_blocks<BITS, PLANES, 1, TOKENS>(f, layout, tile, block, x, x_stride, rows, y);
    }
}

#endif

// --- which of them --------------------------------------------------------------------------------------------------

template <int BITS, int TOKENS>
static void tokens_of_tile(const GroupFormat& f, const Layout& layout, const Tile& tile, int blocks, const void* packed_x,
                           int64_t count, int64_t first, float (*y)[TILE]) {
#if defined(__AVX512VNNI__)
    if (f.planes > 0) {
        const int64_t stride = x_row_bytes(f);
        const int8_t* const x = static_cast<const int8_t*>(packed_x) + first * stride;
        const FixedPointRow* const rows = x_rows(f, count, const_cast<void*>(packed_x)) + first;
        if (f.planes == 2) return byte_tile<BITS, 2, TOKENS>(f, layout, tile, blocks, x, stride, rows, y);
        return byte_tile<BITS, 3, TOKENS>(f, layout, tile, blocks, x, stride, rows, y);
    }
#endif
    (void)count;
    float_tile<BITS, TOKENS>(f, layout, tile, blocks, static_cast<const float*>(packed_x) + first * f.depth, y);
}

template <int BITS>
static void run_bits(const GroupFormat& f, const void* x, int64_t count, const uint8_t* packed, float* y, int64_t begin,
                     int64_t end) {
    constexpr int TOKENS = 4;  // at once, where there are so many
    const Layout layout(f);
    float values[TOKENS][TILE];
    for (int64_t index = begin; index < end; ++index) {
        const Tile tile = tile_at(layout, packed, index);
        const int64_t row = index * TILE, columns = f.rows - row < TILE ? f.rows - row : TILE;
        const int blocks = int((columns + ROWS - 1) / ROWS);
        for (int64_t t = 0; t < count;) {
            const int tokens = count - t >= TOKENS ? TOKENS : 1;
            if (tokens == TOKENS) {
                tokens_of_tile<BITS, TOKENS>(f, layout, tile, blocks, x, count, t, values);
            } else {
                tokens_of_tile<BITS, 1>(f, layout, tile, blocks, x, count, t, values);
            }
            for (int i = 0; i < tokens; ++i, ++t) {
                __builtin_memcpy(y + t * f.rows + row, values[i], size_t(columns) * sizeof(float));
            }
        }
    }
}

static void run(const GroupFormat& format, const void* x, int64_t count, const void* packed, float* y, int64_t begin,
                int64_t end) {
    const auto* const bytes = static_cast<const uint8_t*>(packed);
    switch (format.bits) {
        case 2: return run_bits<2>(format, x, count, bytes, y, begin, end);
        case 3: return run_bits<3>(format, x, count, bytes, y, begin, end);
        case 4: return run_bits<4>(format, x, count, bytes, y, begin, end);
        default: return run_bits<8>(format, x, count, bytes, y, begin, end);
    }
}

}  // namespace

const GroupMatMulKernel group_matmul_kernel = {planes_for, weight_bytes, pack_weight, x_bytes, pack_x, run};

}  // namespace intaglio::INTAGLIO_ISA
