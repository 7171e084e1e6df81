// Weighted averages of values by vectors: products of 16 by 16 bits, summed in 32 bits over CHUNK keys at a time.
#pragma once

#include "plugins/int_attention/workspace.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

class Values {
public:
    Values(int64_t keys, int64_t depth, Memory& memory)
        : panels(ceil_divide(depth, PANEL)),
          depth_(depth),
          packed_(memory.take<int32_t>(panels * ceil_divide(keys, 2) * PANEL)),
          high_(memory.take<int32_t>(ROWS * PANEL)),
          low_(memory.take<int32_t>(ROWS * PANEL)) {}

    void pack(const Rows& values, int64_t keys) {
        keys_ = keys;
        pairs_ = ceil_divide(keys, 2);
        int32_t* out = packed_;
        for (int64_t panel = 0; panel < panels; ++panel) {
            for (int64_t pair = 0; pair < pairs_; ++pair) {
                const int8_t* row = values.data + 2 * pair * values.stride;
                const bool single = 2 * pair + 1 == keys;
                for (int half = 0; half < PANEL; half += LANES, out += LANES) {
                    const int64_t channel = panel * PANEL + half, left = depth_ - channel;
                    if (left >= LANES && !single) {
                        const I32 even = load32(row + channel), odd = load32(row + values.stride + channel);
                        store(out, (even & set32(0xFFFF)) | (odd << 16));
                    } else {
                        const int n = left > 0 ? int(smaller(left, LANES)) : 0;
                        const I32 even = load32(row + channel, n);
                        const I32 odd = single ? set32(0) : load32(row + values.stride + channel, n);
                        store(out, (even & set32(0xFFFF)) | (odd << 16));
                    }
                }
            }
        }
    }

    // Before the averages of a block of queries.
    void prepare(const Weights&) {}

    // Weighted averages of one panel of channels, into sums [rows, PANEL].
    void average(const Multiplier&, const Weights& weights, int64_t panel, int32_t* sums) const {
        const int64_t rows = weights.rows, stride = weights.stride / 2;
        const int32_t* const pairs = reinterpret_cast<const int32_t*>(weights.data);
        const int32_t* const values = packed_ + panel * pairs_ * PANEL;
        if (keys_ <= CHUNK) {
            multiply<dot_pairs>(pairs, stride, rows, values, pairs_, nullptr, sums);
            for (int64_t row = 0; row < rows; ++row) {
                const I32 factor = set32(weights.factors[row]);
                for (int32_t* sum = sums + row * PANEL; sum < sums + (row + 1) * PANEL; sum += LANES) {
                    store(sum, average_of(load32(sum), factor));
                }
            }
            return;
        }
        const I32 zero = set32(0);
        for (int64_t i = 0; i < rows * PANEL; i += LANES) {
            store(high_ + i, zero);
            store(low_ + i, zero);
        }
        for (int64_t pair = 0; pair < pairs_; pair += CHUNK / 2) {
            multiply<dot_pairs>(pairs + pair, stride, rows, values + pair * PANEL, smaller(CHUNK / 2, pairs_ - pair), nullptr,
                                sums);
            for (int64_t i = 0; i < rows * PANEL; i += LANES) {
                const I32 part = load32(sums + i);
                store(high_ + i, load32(high_ + i) + (part >> 8));
                store(low_ + i, load32(low_ + i) + (part & set32(255)));
            }
        }
        for (int64_t i = 0; i < rows * PANEL; ++i) {
            sums[i] = weighted_average(high_[i], low_[i], weights.factors[i / PANEL]);
        }
    }

    const int64_t panels;  // of channels

private:
    int64_t depth_, keys_ = 0, pairs_ = 0;  // of kept keys, the last one perhaps with a zero
    int32_t* packed_;                       // [panels, pairs, PANEL] two keys' values in 32 bits
    int32_t *high_, *low_;                  // [ROWS, PANEL] each
};

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
