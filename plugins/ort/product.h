// How the bindings of integer matrix products divide their work, and their common checks.
#pragma once

#include <algorithm>
#include <string>

#include "plugins/int_linear/kernel.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {

constexpr int64_t MAXIMUM_DEPTH = (1 << 17) - 1;  // 2^14·depth < 2^31

inline void check_depth(int64_t depth) {
    if (depth <= MAXIMUM_DEPTH) return;
    throw Error("sums of " + std::to_string(depth) + " products, expected at most " + std::to_string(MAXIMUM_DEPTH));
}

// Rows that a piece of parallel work packs: some 10 microseconds.
inline int64_t packing_grain(int64_t depth) { return std::max<int64_t>((128 << 10) / std::max<int64_t>(depth, 1), 1); }

// Tasks of one product that a piece of parallel work computes: one, or some 3 microseconds of them, where a product takes as long as
// its multiplications do and, which counts where rows are few, as reading the weight does: about 8 rows more.
inline int64_t product_grain(int64_t rows, int64_t depth, int64_t columns, int64_t tasks) {
    constexpr int64_t MULTIPLICATIONS = 500'000;
    return MULTIPLICATIONS * tasks / std::max<int64_t>((rows + 8) * depth * columns, 1) + 1;
}

// Throws Error unless multiplier and shift are there where `bits` needs them.
inline void check_factors(int bits, const Tensor& multiplier, const Tensor& shift) {
    if (bits != 32 && !(multiplier && shift)) {
        throw Error("bits=" + std::to_string(bits) + " needs the inputs multiplier and shift");
    }
}

}  // namespace intaglio::ort
