// The matrix tiles of x86 (AMX): eight registers of up to 16 rows of 64 bytes, and products of bytes in them.
//
//     c [rows, 16] += a [rows, 4·groups] · b [groups, 16 columns of 4]       int8 or uint8, int8, sums of int32
//
// A CPU has them with the instruction set `amx`. `portabletiles` computes the same in plain C++, so that all that is
// written for tiles is tested on any CPU.
#pragma once

#include <cstdint>
#include <cstring>

#define INTAGLIO_TILE [[maybe_unused]] inline __attribute__((always_inline))

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t TILE_ROWS = 16, TILE_BYTES = 64;  // of a tile
constexpr int TILES = 8;

// How large the tiles are, as the unit's instruction reads it.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};  // of a row
    uint8_t rows[16] = {};

    void set(int tile, int64_t tile_rows, int64_t row_bytes) {
        rows[tile] = uint8_t(tile_rows);
        bytes[tile] = uint16_t(row_bytes);
    }
};
static_assert(sizeof(TileShapes) == 64, "what the instruction reads");

#if defined(__AMX_INT8__)

// This thread's unit, from the first `configure` until the object's end.
class TileUnit {
public:
    TileUnit() = default;
    TileUnit(const TileUnit&) = delete;
    TileUnit& operator=(const TileUnit&) = delete;
    // A thread that keeps its tiles has them saved whenever it is interrupted.
    ~TileUnit() { asm volatile("tilerelease" ::: "memory"); }

    // All tiles are zero then.
    INTAGLIO_TILE void configure(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }

    template <int TILE>
    INTAGLIO_TILE void zero() {
        asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
    }
    // Rows lie `stride` bytes apart.
    template <int TILE>
    INTAGLIO_TILE void load(const void* p, int64_t stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(TILE) : "memory");
    }
    template <int TILE>
    INTAGLIO_TILE void store(void* p, int64_t stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(TILE) : "memory");
    }
    // Tile C += A·B, both of int8.
    template <int C, int A, int B>
    INTAGLIO_TILE void multiply() {
        asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
    // The same, with A of uint8.
    template <int C, int A, int B>
    INTAGLIO_TILE void multiply_unsigned() {
        asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
    }
};

#else

class TileUnit {
public:
    TileUnit() = default;
    TileUnit(const TileUnit&) = delete;
    TileUnit& operator=(const TileUnit&) = delete;

    void configure(const TileShapes& shapes) {
        shapes_ = shapes;
        std::memset(tiles_, 0, sizeof tiles_);
    }
    template <int TILE>
    void zero() {
        std::memset(tiles_[TILE], 0, sizeof tiles_[TILE]);
    }
    template <int TILE>
    void load(const void* p, int64_t stride) {
        zero<TILE>();
        for (int row = 0; row < shapes_.rows[TILE]; ++row) {
            std::memcpy(tiles_[TILE][row], static_cast<const uint8_t*>(p) + row * stride, shapes_.bytes[TILE]);
        }
    }
    template <int TILE>
    void store(void* p, int64_t stride) const {
        for (int row = 0; row < shapes_.rows[TILE]; ++row) {
            std::memcpy(static_cast<uint8_t*>(p) + row * stride, tiles_[TILE][row], shapes_.bytes[TILE]);
        }
    }
    template <int C, int A, int B>
    void multiply() {
        add_products<C, A, B, int8_t>();
    }
    template <int C, int A, int B>
    void multiply_unsigned() {
        add_products<C, A, B, uint8_t>();
    }

private:
    // Beyond the rows and bytes that a tile has, there are zeros.
    template <int C, int A, int B, typename Left>
    void add_products() {
        constexpr int COLUMNS = TILE_BYTES / 4;
        for (int row = 0; row < shapes_.rows[C]; ++row) {
            int32_t sums[COLUMNS];
            std::memcpy(sums, tiles_[C][row], sizeof sums);
            for (int group = 0; group < shapes_.rows[B]; ++group) {
                Left left[4];
                std::memcpy(left, tiles_[A][row] + 4 * group, sizeof left);
                int8_t right[TILE_BYTES];
                std::memcpy(right, tiles_[B][group], sizeof right);
                for (int column = 0; column < COLUMNS; ++column) {
                    int32_t sum = 0;
                    for (int i = 0; i < 4; ++i) sum += left[i] * right[4 * column + i];
                    sums[column] = int32_t(uint32_t(sums[column]) + uint32_t(sum));
                }
            }
            std::memcpy(tiles_[C][row], sums, sizeof sums);
        }
    }

    TileShapes shapes_;
    alignas(64) uint8_t tiles_[TILES][TILE_ROWS][TILE_BYTES];
};

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
