// How much of a product is worked on at a time, so that it stays in the first-level cache: QIGen's model (section 3,
// equations 3 and 5). A block is m_b values of K by t_b rows of the weight, and holds of x, of the weight and of y
//
//     x·m_b + weight·m_b·t_b + y·t_b <= L1      in bits, where QIGen has 32·m_b + b·m_b·t_b + 32·t_b
//
// m_b is a multiple of what micro-kernels step along K, t_b of the rows that they take; of all such blocks the one that
// fills the cache best is taken.
#pragma once

#include <cstdint>

#include "plugins/cpu/cache_size.h"

namespace intaglio {

struct BlockBits {
    int64_t x;       // of one value of K, in all rows of x at once
    int64_t weight;  // of one number
    int64_t y;       // of one row of the weight, in all rows of x at once
};

struct CacheBlock {
    int64_t depth, rows;  // m_b, t_b
};

// depth_step, row_step: what m_b and t_b are multiples of, each at least once; depth, rows: what they need not exceed.
[[maybe_unused]] static CacheBlock largest_cache_block(const BlockBits& bits, int64_t depth_step, int64_t depth,
                                                       int64_t row_step, int64_t rows, int64_t cache_bits) {
    CacheBlock best = {depth_step, row_step};
    int64_t best_filled = 0;
    for (int64_t t = row_step; t <= rows; t += row_step) {
        const int64_t fitting = (cache_bits - bits.y * t) / (bits.x + bits.weight * t) / depth_step * depth_step;
        const int64_t m = fitting < depth ? fitting : depth;
        const int64_t filled = bits.x * m + bits.weight * m * t + bits.y * t;
        if (m >= depth_step && filled >= best_filled) {
            best = {m, t};
            best_filled = filled;
        }
    }
    return best;
}

[[maybe_unused]] static CacheBlock largest_cache_block(const BlockBits& bits, int64_t depth_step, int64_t depth,
                                                       int64_t row_step, int64_t rows) {
    return largest_cache_block(bits, depth_step, depth, row_step, rows, 8 * first_level_cache());
}

}  // namespace intaglio
