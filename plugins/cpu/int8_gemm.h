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
#pragma once

#include "plugins/cpu/cache_size.h"
#include "plugins/cpu/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

INTAGLIO_SIMD I16 as_pairs(I32 v) {
    I16 pairs;
    std::memcpy(&pairs, &v, sizeof pairs);
    return pairs;
}

#if defined(__AVX512VNNI__)
constexpr int GROUP = 4;  // entries of K in 32 bits
constexpr bool UNSIGNED_X = true;  // int8 x counts as x + 128
INTAGLIO_SIMD I32 dot(I32 sum, I32 x, I32 w) {
    return {_mm512_dpbusd_epi32(sum.v, (x ^ set32(int32_t(0x80808080))).v, w.v)};  // x + 128 in each byte
}
INTAGLIO_SIMD I32 dot_pairs(I32 sum, I32 x, I32 w) { return {_mm512_dpwssd_epi32(sum.v, x.v, w.v)}; }
#else
constexpr bool UNSIGNED_X = false;
INTAGLIO_SIMD I32 dot_pairs(I32 sum, I32 x, I32 w) { return sum + multiply_add_pairs(as_pairs(x), as_pairs(w)); }
#if defined(INTAGLIO_NEON) && defined(__ARM_FEATURE_DOTPROD)
constexpr int GROUP = 4;
INTAGLIO_SIMD I32 dot(I32 sum, I32 x, I32 w) {
    return both<I32>([=](int i) {
        return vdotq_s32(sum.v[i], vreinterpretq_s8_s32(x.v[i]), vreinterpretq_s8_s32(w.v[i]));
    });
}
#else
constexpr int GROUP = 2;
INTAGLIO_SIMD I32 dot(I32 sum, I32 x, I32 w) { return dot_pairs(sum, x, w); }
#endif
#endif
using Dot = I32 (*)(I32 sum, I32 x, I32 w);  // dot, or dot_pairs of 16-bit integers on any CPU

// Registers: 32 in AVX-512, 16 before; 32 in NEON, of which a vector takes two.
#if defined(__AVX512BW__)
constexpr int ROWS = 14;
#elif defined(__AVX2__)
constexpr int ROWS = 6;
#elif defined(INTAGLIO_NEON)
constexpr int ROWS = GROUP == 4 ? 6 : 4;  // products of pairs need registers of their own
#else
constexpr int ROWS = 2;
#endif

constexpr bool BYTES = GROUP == 4;  // whether groups hold bytes
constexpr int PANEL = 2 * LANES;    // columns of a panel
constexpr int COLUMNS = 16;         // columns of w that are packed in one step
static_assert(PANEL % COLUMNS == 0, "a panel is packed in whole steps");

INTAGLIO_SIMD int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
INTAGLIO_SIMD int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// --- the right side: w ----------------------------------------------------------------------------------------------

// w [K, N], packed; a view of memory that its maker owns.
struct PackedMatrix {
    int64_t rows, columns;  // K and N
    int64_t groups;         // of a column: K / GROUP, rounded up
    int64_t panels;         // N / PANEL, rounded up; columns beyond N are zero
    int32_t* start;         // [panels·PANEL] what the sums begin with
    int32_t* data;          // [panels, groups, PANEL]

    const int32_t* panel(int64_t index) const { return data + index * groups * PANEL; }
};

// Bytes that packing w [rows, columns] takes.
INTAGLIO_SIMD int64_t packed_bytes(int64_t rows, int64_t columns) {
    return 4 * PANEL * ceil_divide(columns, PANEL) * (ceil_divide(rows, GROUP) + 1);
}

// A matrix still to be packed in `memory`: packed_bytes(rows, columns), best aligned to 64.
INTAGLIO_SIMD PackedMatrix packed_matrix(int64_t rows, int64_t columns, void* memory) {
    PackedMatrix matrix;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.groups = ceil_divide(rows, GROUP);
    matrix.panels = ceil_divide(columns, PANEL);
    matrix.start = static_cast<int32_t*>(memory);
    matrix.data = matrix.start + matrix.panels * PANEL;
    return matrix;
}

#if defined(__AVX2__)
INTAGLIO_SIMD __m128i load_bytes(const int8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
INTAGLIO_SIMD void store_four(int32_t* to, __m128i groups) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), groups); }

// Four groups from 4·GROUP entries that follow each other.
INTAGLIO_SIMD __m128i four_groups(const int8_t* p) {
    if constexpr (BYTES) return load_bytes(p);
    return _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
#else
// One group from entries that lie `stride` bytes apart.
INTAGLIO_SIMD void store_group(int32_t* to, const int8_t* w, int64_t stride) {
    if constexpr (BYTES) {
        const int8_t bytes[4] = {w[0], w[stride], w[2 * stride], w[3 * stride]};
        std::memcpy(to, bytes, sizeof bytes);
    } else {
        const int16_t pair[2] = {w[0], w[stride]};
        std::memcpy(to, pair, sizeof pair);
    }
}
#endif

// COLUMNS groups, one per column, from GROUP rows of w that lie `stride` bytes apart.
INTAGLIO_SIMD void interleave_rows(const int8_t* w, int64_t stride, int32_t* out) {
#if defined(__AVX2__)
    const __m128i first = load_bytes(w), second = load_bytes(w + stride);
    const __m128i low = _mm_unpacklo_epi8(first, second), high = _mm_unpackhi_epi8(first, second);
    if constexpr (BYTES) {
        const __m128i third = load_bytes(w + 2 * stride), fourth = load_bytes(w + 3 * stride);
        const __m128i next_low = _mm_unpacklo_epi8(third, fourth), next_high = _mm_unpackhi_epi8(third, fourth);
        store_four(out, _mm_unpacklo_epi16(low, next_low));
        store_four(out + 4, _mm_unpackhi_epi16(low, next_low));
        store_four(out + 8, _mm_unpacklo_epi16(high, next_high));
        store_four(out + 12, _mm_unpackhi_epi16(high, next_high));
    } else {
        store_four(out, _mm_cvtepi8_epi16(low));
        store_four(out + 4, _mm_cvtepi8_epi16(_mm_srli_si128(low, 8)));
        store_four(out + 8, _mm_cvtepi8_epi16(high));
        store_four(out + 12, _mm_cvtepi8_epi16(_mm_srli_si128(high, 8)));
    }
#else
    for (int c = 0; c < COLUMNS; ++c) store_group(out + c, w + c, stride);
#endif
}

// Four groups of each of four columns, from rows of the transposed w that lie `stride` bytes apart.
INTAGLIO_SIMD void interleave_columns(const int8_t* w, int64_t stride, int32_t* out) {
#if defined(__AVX2__)
    const __m128i a = four_groups(w), b = four_groups(w + stride);
    const __m128i c = four_groups(w + 2 * stride), d = four_groups(w + 3 * stride);
    const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
    const __m128i next_ab = _mm_unpackhi_epi32(a, b), next_cd = _mm_unpackhi_epi32(c, d);
    store_four(out, _mm_unpacklo_epi64(ab, cd));
    store_four(out + PANEL, _mm_unpackhi_epi64(ab, cd));
    store_four(out + 2 * PANEL, _mm_unpacklo_epi64(next_ab, next_cd));
    store_four(out + 3 * PANEL, _mm_unpackhi_epi64(next_ab, next_cd));
#else
    for (int g = 0; g < 4; ++g) {
        for (int c = 0; c < 4; ++c) store_group(out + g * PANEL + c, w + c * stride + GROUP * g, 1);
    }
#endif
}

// -128·(the panel's column sums), for x + 128 in place of x.
[[maybe_unused]] static void find_start(const PackedMatrix& matrix, int64_t panel) {
    for (int half = 0; half < PANEL; half += LANES) {
        I32 surplus = set32(0);
        if constexpr (UNSIGNED_X) {
            const int32_t* w = matrix.panel(panel) + half;
            for (int64_t g = 0; g < matrix.groups; ++g) surplus = dot(surplus, set32(0), load32(w + g * PANEL));
        }
        store(matrix.start + panel * PANEL + half, set32(0) - surplus);
    }
}

// Packs one panel of w [K, N] whose rows lie `stride` bytes apart.
[[maybe_unused]] static void pack_rows(const PackedMatrix& matrix, int64_t panel, const int8_t* w, int64_t stride) {
    int32_t* out = matrix.data + panel * matrix.groups * PANEL;
    for (int64_t g = 0; g < matrix.groups; ++g) {
        const int64_t row = g * GROUP, rows = smaller(GROUP, matrix.rows - row);
        for (int c = 0; c < PANEL; c += COLUMNS, out += COLUMNS) {
            const int64_t column = panel * PANEL + c, columns = smaller(COLUMNS, matrix.columns - column);
            const int8_t* from = w + row * stride + column;
            if (rows == GROUP && columns == COLUMNS) {
                interleave_rows(from, stride, out);
                continue;
            }
            int8_t edge[GROUP * COLUMNS] = {};
            for (int i = 0; i < rows && columns > 0; ++i) {
                std::memcpy(edge + i * COLUMNS, from + i * stride, size_t(columns));
            }
            interleave_rows(edge, COLUMNS, out);
        }
    }
    find_start(matrix, panel);
}

// Packs one panel of w [K, N] from its transpose [N, K], whose rows lie `stride` bytes apart.
[[maybe_unused]] static void pack_columns(const PackedMatrix& matrix, int64_t panel, const int8_t* w, int64_t stride) {
    constexpr int DEPTH = 4 * GROUP;  // entries of K packed in one step
    int32_t* out = matrix.data + panel * matrix.groups * PANEL;
    for (int64_t g = 0; g < matrix.groups; g += 4, out += 4 * PANEL) {
        const int64_t row = g * GROUP, rows = smaller(DEPTH, matrix.rows - row);
        for (int c = 0; c < PANEL; c += 4) {
            const int64_t column = panel * PANEL + c, columns = smaller(4, matrix.columns - column);
            const int8_t* from = w + column * stride + row;
            if (rows == DEPTH && columns == 4) {
                interleave_columns(from, stride, out + c);
                continue;
            }
            int8_t edge[4 * DEPTH] = {};
            for (int i = 0; i < columns; ++i) std::memcpy(edge + i * DEPTH, from + i * stride, size_t(rows));
            int32_t groups[4 * PANEL];
            interleave_columns(edge, DEPTH, groups);
            for (int i = 0; i < smaller(4, matrix.groups - g); ++i) {
                std::memcpy(out + i * PANEL + c, groups + i * PANEL, 16);
            }
        }
    }
    find_start(matrix, panel);
}

// --- the left side: x -----------------------------------------------------------------------------------------------

// Whether rows of int8 that lie `stride` apart are groups already: of bytes, none incomplete, and not so far apart
// that a tile's rows meet in more lines of one set of the first-level cache (64 sets of 64 bytes) than it has.
INTAGLIO_SIMD bool in_place(int64_t stride, int64_t depth) {
    return BYTES && depth % GROUP == 0 && stride % GROUP == 0 && stride % 2048 != 0;
}

// Groups from one packed row of x to the next: an odd number of cache lines, which spreads a tile's rows over the sets.
INTAGLIO_SIMD int64_t packed_stride(int64_t depth) { return 16 * (ceil_divide(ceil_divide(depth, GROUP), 16) | 1); }

// Groups from one row of x [rows, depth] to the next in the product: in place, or packed.
INTAGLIO_SIMD int64_t left_stride(int64_t depth) {
    return in_place(depth, depth) ? depth / GROUP : packed_stride(depth);
}

// Bytes that packing x [rows, depth] takes; none where it is read in its place.
INTAGLIO_SIMD int64_t left_bytes(int64_t rows, int64_t depth) {
    return in_place(depth, depth) ? 0 : 4 * rows * packed_stride(depth);
}

// 64 bytes of groups from the next 16·GROUP entries of x.
INTAGLIO_SIMD void pack_entries(const int8_t* x, int32_t* out) {
    if constexpr (BYTES) {
        std::memcpy(out, x, 16 * GROUP);
    } else {
        int16_t pairs[16 * GROUP];
        for (int i = 0; i < 16 * GROUP; ++i) pairs[i] = x[i];
        std::memcpy(out, pairs, sizeof pairs);
    }
}

// Packs x [rows, depth], whose rows lie `stride` bytes apart, into rows of packed_stride(depth).
[[maybe_unused]] static void pack_left(const int8_t* x, int64_t stride, int64_t rows, int64_t depth, int32_t* out) {
    constexpr int STEP = 16 * GROUP;
    for (int64_t r = 0; r < rows; ++r) {
        const int8_t* from = x + r * stride;
        int32_t* to = out + r * packed_stride(depth);
        int64_t k = 0;
        for (; k + STEP <= depth; k += STEP) pack_entries(from + k, to + k / GROUP);
        if (k < depth) {
            int8_t edge[STEP] = {};
            std::memcpy(edge, from + k, size_t(depth - k));
            pack_entries(edge, to + k / GROUP);
        }
    }
}

// --- the product ----------------------------------------------------------------------------------------------------

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

// Rows `first` to `last` of packed x times one panel, tile by tile: finish(tile [rows, PANEL], first row, rows).
// Tiles are balanced, since a tile of few rows is bound by the loads of w.
template <class Finish>
[[maybe_unused]] static void multiply_panel(
    const int32_t* x, int64_t first, int64_t last, const PackedMatrix& matrix, int64_t panel, const Finish& finish) {
    alignas(64) int32_t tile[ROWS * PANEL];
    const int32_t* const start = matrix.start + panel * PANEL;
    const int64_t stride = left_stride(matrix.rows), count = last - first, tiles = ceil_divide(count, ROWS);
    for (int64_t i = 0; i < tiles; ++i) {
        const int64_t row = first + count * i / tiles, rows = first + count * (i + 1) / tiles - row;
        multiply(x + row * stride, stride, rows, matrix.panel(panel), matrix.groups, start, tile);
        finish(tile, row, rows);
    }
}

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
