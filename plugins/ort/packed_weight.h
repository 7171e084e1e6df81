// The inputs that the bindings of layers with packed weights, LutMatMul and GroupMatMul, both read and check.
#pragma once

#include <algorithm>
#include <string>

#include "plugins/ort/operator.h"

namespace intaglio::ort {

constexpr int64_t LARGEST_K = 1 << 30;  // so that no packed size overflows 64 bits

// Rows of x that a piece of parallel work packs: some microseconds.
inline int64_t x_packing_grain(int64_t depth) { return std::max<int64_t>((32 << 10) / std::max<int64_t>(depth, 1), 1); }

struct PackedWeight {
    int64_t bits, depth, activation_bits;

    explicit PackedWeight(const Node& node)
        : bits(node.integer("bits")), depth(node.integer("K")), activation_bits(node.integer("activation_bits")) {
        if (depth < 0 || depth > LARGEST_K || depth % 32 != 0) {
            throw Error("K: " + std::to_string(depth) + ", expected a multiple of 32, at most 2^30");
        }
    }

    // N of packed [N, K·bits/32].
    int64_t rows(const Tensor& packed) const {
        const int64_t words = depth * bits / 32;
        if (packed.shape.rank() != 2 || packed.shape.axis(1) != words) {
            throw Error("packed: shape " + packed.shape.text() + ", expected [N, " + std::to_string(words) + "]");
        }
        return packed.shape.axis(0);
    }

    // [..., N] for x [..., K].
    Shape output_shape(const Tensor& x, int64_t rows) const {
        if (x.shape.rank() < 1 || x.shape.axis(-1) != depth) {
            throw Error("x: shape " + x.shape.text() + ", expected [..., " + std::to_string(depth) + "]");
        }
        Shape shape = x.shape;
        shape.set_axis(-1, rows);
        return shape;
    }
};

}  // namespace intaglio::ort
