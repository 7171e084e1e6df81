// Weighted averages of values by matrix tiles: products of the two bytes of each weight, which are unsigned, with the values.
// Sums of either have 32 bits for all keys that a row may have: 255·128·MAX_ROW < 2^31.
#pragma once

#include "plugins/int_attention/workspace.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

class Values {
public:
    Values(int64_t keys, int64_t depth, Memory& memory)
        : panels(ceil_divide(depth, PANEL)),
          packed_(packed_matrix(keys, depth, memory.take<char>(packed_bytes(keys, depth)))),
          stride_(spread_stride<uint8_t>(GROUP * packed_.groups)),
          high_(memory.take<uint8_t>(ROWS * stride_)),
          low_(memory.take<uint8_t>(ROWS * stride_)),
          low_sums_(memory.take<int32_t>(TILE_ROWS * PANEL)) {}

    void pack(const Rows& values, int64_t keys) {
        packed_ = packed_matrix(keys, packed_.columns, packed_.start);
        for (int64_t panel = 0; panel < panels; ++panel) pack_rows(packed_, panel, values.data, values.stride);
    }

    // Before the averages of a block of queries.
    void prepare(const Weights& weights) {
        const int64_t keys = packed_.rows, padded = GROUP * packed_.groups;
        for (int64_t row = 0; row < weights.rows; ++row) {
            const int16_t* const from = weights.data + row * weights.stride;
            uint8_t *const high = high_ + row * stride_, *const low = low_ + row * stride_;
            for (int64_t i = 0; i < keys; ++i) {
                high[i] = uint8_t(from[i] >> 8);
                low[i] = uint8_t(from[i]);
            }
            std::memset(high + keys, 0, size_t(padded - keys));
            std::memset(low + keys, 0, size_t(padded - keys));
        }
    }

    // Weighted averages of one panel of channels, into sums [rows, PANEL].
    void average(Multiplier& multiplier, const Weights& weights, int64_t panel, int32_t* sums) const {
        for (int64_t first = 0; first < weights.rows; first += TILE_ROWS) {
            const int64_t rows = smaller(TILE_ROWS, weights.rows - first);
            const int32_t* const factors = weights.factors + first;
            int32_t* const high_sums = sums + first * PANEL;
            multiplier.multiply_unsigned(high_ + first * stride_, low_ + first * stride_, stride_, rows, packed_.panel(panel),
                                         packed_.groups, high_sums, low_sums_);
            if (packed_.rows > CHUNK) {
                for (int64_t i = 0; i < rows * PANEL; ++i) {
                    high_sums[i] = weighted_average(high_sums[i], low_sums_[i], factors[i / PANEL]);
                }
                continue;
            }
            for (int64_t row = 0; row < rows; ++row) {
                const I32 factor = set32(factors[row]);
                for (int64_t i = row * PANEL; i < (row + 1) * PANEL; i += LANES) {
                    const I32 sum = (load32(high_sums + i) << 8) + load32(low_sums_ + i);
                    store(high_sums + i, average_of(sum, factor));
                }
            }
        }
    }

    const int64_t panels;  // of channels

private:
    PackedMatrix packed_;     // [keys, depth]
    int64_t stride_;          // bytes of a row of weights
    uint8_t *high_, *low_;    // [ROWS, stride]
    int32_t* low_sums_;       // [TILE_ROWS, PANEL]
};

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
