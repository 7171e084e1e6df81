// Both sides of products of bytes, packed: see int8/gemm.h.
#pragma once

#include "plugins/cpu/isa.h"
#include "plugins/cpu/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

INTAGLIO_SIMD I16 as_pairs(I32 v) {
    I16 pairs;
    std::memcpy(&pairs, &v, sizeof pairs);
    return pairs;
}

#if INTAGLIO_TILES
constexpr int GROUP = 4;  // entries of K in 32 bits
#elif defined(__AVX512VNNI__)
constexpr int GROUP = 4;
#define INTAGLIO_UNSIGNED_X 1  // int8 x counts as x + 128
INTAGLIO_SIMD I32 dot(I32 sum, I32 x, I32 w) {
    return {_mm512_dpbusd_epi32(sum.v, (x ^ set32(int32_t(0x80808080))).v, w.v)};  // x + 128 in each byte
}
INTAGLIO_SIMD I32 dot_pairs(I32 sum, I32 x, I32 w) { return {_mm512_dpwssd_epi32(sum.v, x.v, w.v)}; }
#else
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
#if !INTAGLIO_TILES
using Dot = I32 (*)(I32 sum, I32 x, I32 w);  // dot, or dot_pairs of 16-bit integers on any CPU
#endif

// Registers: 32 in AVX-512, 16 before; 32 in NEON, of which a vector takes two.
#if INTAGLIO_TILES
constexpr int ROWS = 32;
#elif defined(__AVX512BW__)
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

// Groups of K: with tiles, which have 1 to 16, a part of one or whole ones.
INTAGLIO_SIMD int64_t groups_of(int64_t depth) {
    const int64_t groups = ceil_divide(depth, GROUP);
    if (!INTAGLIO_TILES) return groups;
    return groups == 0 ? 1 : groups <= 16 ? groups : ceil_divide(groups, 16) * 16;
}

// --- the right side: w ----------------------------------------------------------------------------------------------

// w [K, N], packed; a view of memory that its maker owns.
struct PackedMatrix {
    int64_t rows, columns;  // K and N
    int64_t groups;         // of a column: groups_of(K)
    int64_t panels;         // N / PANEL, rounded up; columns beyond N are zero
    int32_t* start;         // [panels·PANEL] what the sums begin with
    int32_t* data;          // [panels, groups, PANEL]

    const int32_t* panel(int64_t index) const { return data + index * groups * PANEL; }
};

// Bytes that packing w [rows, columns] takes.
INTAGLIO_SIMD int64_t packed_bytes(int64_t rows, int64_t columns) {
    return 4 * PANEL * ceil_divide(columns, PANEL) * (groups_of(rows) + 1);
}

// A matrix still to be packed in `memory`: packed_bytes(rows, columns), best aligned to 64.
INTAGLIO_SIMD PackedMatrix packed_matrix(int64_t rows, int64_t columns, void* memory) {
    PackedMatrix matrix;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.groups = groups_of(rows);
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
#if INTAGLIO_UNSIGNED_X
        const int32_t* w = matrix.panel(panel) + half;
        for (int64_t g = 0; g < matrix.groups; ++g) surplus = dot(surplus, set32(0), load32(w + g * PANEL));
#endif
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
        const int64_t row = g * GROUP, rows = smaller(DEPTH, matrix.rows > row ? matrix.rows - row : 0);
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
// that a tile's rows meet in more lines of one set of the first-level cache (64 sets of 64 bytes) than it has. Matrix tiles
// take a line at a time, so that does not matter to them.
INTAGLIO_SIMD bool in_place(int64_t stride, int64_t depth) {
    if (!BYTES || depth % GROUP != 0 || stride % GROUP != 0) return false;
    return INTAGLIO_TILES ? groups_of(depth) == depth / GROUP : stride % 2048 != 0;
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

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
