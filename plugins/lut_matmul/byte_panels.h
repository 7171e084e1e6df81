// Panels of 32 rows of the weight, looked up for products of bytes with many rows of x (int8/gemm.h), with VNNI and with matrix
// tiles.
#pragma once

#include <cstdint>

#include "plugins/cpu/index_units.h"
#include "plugins/cpu/int8/gemm.h"
#include "plugins/lut_matmul/stretch.h"

#if defined(__AVX512VNNI__) || INTAGLIO_TILES
#define INTAGLIO_BYTE_PANELS 1
#else
#define INTAGLIO_BYTE_PANELS 0
#endif

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t LEAST_PANEL_ROWS = 12;  // of x, from which on panels are faster than micro-kernels

#if defined(__AVX512VNNI__)

// The bytes of 16 rows for 64 values of K, as bytes[k / 4][row][k % 4], with 64 other bytes after each 64: a transposition.
INTAGLIO_FLOAT void put_rows(const __m512i* rows, uint8_t* bytes) {
    __m512i pairs[16], fours[16];
    for (int i = 0; i < 16; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {  // fours[i + j]: column j of each lane of four columns, of rows i to i + 3
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int j = 0; j < 4; ++j) {
        const __m512i low_even = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88);  // lanes 0 and 2 of both
        const __m512i low_odd = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xdd);
        const __m512i high_even = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0x88);
        const __m512i high_odd = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0xdd);
        _mm512_store_si512(bytes + 128 * j, _mm512_shuffle_i32x4(low_even, high_even, 0x88));
        _mm512_store_si512(bytes + 128 * (4 + j), _mm512_shuffle_i32x4(low_odd, high_odd, 0x88));
        _mm512_store_si512(bytes + 128 * (8 + j), _mm512_shuffle_i32x4(low_even, high_even, 0xdd));
        _mm512_store_si512(bytes + 128 * (12 + j), _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd));
    }
}

#elif INTAGLIO_TILES

// What micro_kernels/lut_bytes.py writes for vectors: of 16 rows from s.units on.
static void lut_bytes(int bits, const LutStretch& s, int64_t group_bytes, uint8_t* bytes) {
    for (int64_t k = 0; k < s.depth; ++k) {
        const int64_t unit = k / unit_indices(bits), place = k % unit_indices(bits);
        for (int64_t row = 0; row < 16; ++row) {
            const uint8_t* const of_row = s.units + row / 4 * group_bytes + (unit * 4 + row % 4) * unit_bytes(bits);
            const int index = get_index(of_row, bits, int(place / 64), int(place % 64));
            bytes[k / 4 * 128 + row * 4 + k % 4] = uint8_t(s.tables[row * s.table_stride + index] - 128);
        }
    }
}

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
