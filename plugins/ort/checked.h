// Products of lengths that a graph states: one that leaves 64 bits is an Error, never a small number.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/ort/ort_abi.h"

namespace intaglio::ort {

inline int64_t checked_product(int64_t a, int64_t b) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) {
        throw Error(std::to_string(a) + " times " + std::to_string(b) + " elements, expected less than 2^63");
    }
    return product;
}

}  // namespace intaglio::ort
