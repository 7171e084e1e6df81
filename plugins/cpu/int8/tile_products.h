// What int8/gemm.h does with matrix tiles: blocks of two by two, 32 rows of x by a panel of 32 columns of w.
//
// Panels lie as for VNNI: 16 of their groups, with every second 64 bytes, are a tile of w. So are the bytes of 16 rows of x. Both
// are filled up with zeros to whole tiles along K, unless K is less than one, which the unit is told then.
//
// A product of tiles takes 16 cycles, in which the processor requantises the sums of the block before.
#pragma once

#include "plugins/cpu/int8/packing.h"
#include "plugins/cpu/int8/tile_unit.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t TILE_GROUPS = TILE_BYTES / 4;  // of four bytes along K
constexpr int64_t TILE_COLUMNS = TILE_BYTES / 4;
static_assert(PANEL == 2 * TILE_COLUMNS, "a panel is two tiles wide");

// Products with one thread's tiles: 0 to 3 are sums, 4 and 5 of x, 6 and 7 of w.
class Multiplier {
public:
    // sums [rows, PANEL] = start + x·w, as the function of the same form does with vectors. rows <= ROWS. `meanwhile` is
    // called with 0 to groups / TILE_GROUPS (rounded up) - 1, and does other work between the products.
    template <typename Meanwhile>
    void operator()(const int32_t* x, int64_t stride, int64_t rows, const int32_t* w, int64_t groups, const int32_t* start,
                    int32_t* sums, int64_t sums_stride, const Meanwhile& meanwhile) {
        const int64_t upper = smaller(rows, TILE_ROWS);
        configure(upper, rows - upper, groups);
        const int32_t* const lower_x = x + upper * stride;
        int32_t* const lower_sums = sums + upper * sums_stride;
        if (rows > upper) {
            products<true, false>(x, lower_x, 4 * stride, w, groups, start, sums, lower_sums, sums_stride, meanwhile);
        } else {
            products<false, false>(x, nullptr, 4 * stride, w, groups, start, sums, nullptr, sums_stride, meanwhile);
        }
    }
    void operator()(const int32_t* x, int64_t stride, int64_t rows, const int32_t* w, int64_t groups, const int32_t* start,
                    int32_t* sums, int64_t sums_stride) {
        (*this)(x, stride, rows, w, groups, start, sums, sums_stride, [](int64_t) {});
    }

    // The sums of two matrices of uint8, `high` and `low` [rows, 4·groups], whose rows lie `stride` bytes apart, with the same
    // panel: high_sums and low_sums [rows, PANEL]. rows <= TILE_ROWS
    void multiply_unsigned(const uint8_t* high, const uint8_t* low, int64_t stride, int64_t rows, const int32_t* w,
                           int64_t groups, int32_t* high_sums, int32_t* low_sums) {
        configure(rows, rows, groups);
        products<true, true>(high, low, stride, w, groups, nullptr, high_sums, low_sums, PANEL, [](int64_t) {});
    }

private:
    void configure(int64_t upper, int64_t lower, int64_t groups) {
        const int64_t step = smaller(groups, TILE_GROUPS);
        if (upper == upper_ && lower == lower_ && step == step_) return;
        upper_ = upper;
        lower_ = lower;
        step_ = step;
        TileShapes shapes;
        for (int i = 0; i < 2; ++i) {
            shapes.set(i, upper, TILE_BYTES);
            shapes.set(2 + i, lower, lower > 0 ? TILE_BYTES : 0);
            shapes.set(6 + i, step, TILE_BYTES);
        }
        shapes.set(4, upper, 4 * step);
        shapes.set(5, lower, lower > 0 ? 4 * step : 0);
        unit_.configure(shapes);
    }

    template <bool UNSIGNED, int C, int A, int B>
    INTAGLIO_TILE void multiply() {
        if constexpr (UNSIGNED) {
            unit_.template multiply_unsigned<C, A, B>();
        } else {
            unit_.template multiply<C, A, B>();
        }
    }

    template <int C>
    INTAGLIO_TILE void begin(const int32_t* start) {
        if (start == nullptr) return unit_.template zero<C>();
        unit_.template load<C>(start, 0);
    }

    template <bool LOWER, bool UNSIGNED, typename Meanwhile>
    INTAGLIO_TILE void products(const void* upper_x, const void* lower_x, int64_t stride, const int32_t* w, int64_t groups,
                                const int32_t* start, int32_t* upper_sums, int32_t* lower_sums, int64_t sums_stride,
                                const Meanwhile& meanwhile) {
        const int32_t* const next_start = start == nullptr ? nullptr : start + TILE_COLUMNS;
        begin<0>(start);
        begin<1>(next_start);
        if constexpr (LOWER) {
            begin<2>(start);
            begin<3>(next_start);
        }
        for (int64_t group = 0, step = 0; group < groups; group += TILE_GROUPS, ++step, w += TILE_GROUPS * PANEL) {
            unit_.template load<4>(static_cast<const uint8_t*>(upper_x) + 4 * group, stride);
            unit_.template load<6>(w, 4 * PANEL);
            multiply<UNSIGNED, 0, 4, 6>();
            unit_.template load<7>(w + TILE_COLUMNS, 4 * PANEL);
            multiply<UNSIGNED, 1, 4, 7>();
            if constexpr (LOWER) {
                unit_.template load<5>(static_cast<const uint8_t*>(lower_x) + 4 * group, stride);
                multiply<UNSIGNED, 2, 5, 6>();
                multiply<UNSIGNED, 3, 5, 7>();
            }
            meanwhile(step);
        }
        unit_.template store<0>(upper_sums, 4 * sums_stride);
        unit_.template store<1>(upper_sums + TILE_COLUMNS, 4 * sums_stride);
        if constexpr (LOWER) {
            unit_.template store<2>(lower_sums, 4 * sums_stride);
            unit_.template store<3>(lower_sums + TILE_COLUMNS, 4 * sums_stride);
        }
    }

    TileUnit unit_;
    int64_t upper_ = 0, lower_ = 0, step_ = 0;
};

// Rows `first` to `last` - 1 of packed x times one panel, block by block: finish(sums [rows, PANEL], first row, rows), in
// order, while the next block is multiplied.
template <class Finish>
[[maybe_unused]] static void multiply_panel(Multiplier& multiplier, const int32_t* x, int64_t first, int64_t last,
                                            const PackedMatrix& matrix, int64_t panel, const Finish& finish) {
    constexpr int64_t LEAST_ROWS = 4;  // that are finished at once: their factors are loaded each time
    alignas(64) int32_t sums[2][ROWS * PANEL];
    const int32_t* const start = matrix.start + panel * PANEL;
    const int64_t stride = left_stride(matrix.rows), steps = ceil_divide(matrix.groups, TILE_GROUPS);
    int32_t *now = sums[0], *before = sums[1];
    int64_t done = first, computed = first;  // rows that are finished, and multiplied
    for (int64_t row = first; row < last; row += ROWS) {
        const int64_t rows = smaller(ROWS, last - row);
        const auto finish_some = [&](int64_t step) {
            const int64_t due = step + 1 == steps ? computed : row - ROWS + (step + 1) * ROWS / steps;
            if (computed == done || (due - done < LEAST_ROWS && due < computed)) return;
            finish(before + (done - (row - ROWS)) * PANEL, done, due - done);
            done = due;
        };
        multiplier(x + row * stride, stride, rows, matrix.panel(panel), matrix.groups, start, now, PANEL, finish_some);
        computed = row + rows;
        int32_t* const other = before;
        before = now;
        now = other;
    }
    if (done < computed) finish(before, done, computed - done);
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
