// Rotary position embedding of a matrix: pairs of channels of each head turned by the angles of their row, to int8.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

// x: [rows, heads, 2, half] int32, limited to 16 bits here
// cosine, sine: [rows, half] int32 in Q14, limited to ±2^14 here
// multiplier any int32, shift in 0..62
// y: [rows, heads, 2, half] int8
struct IntRotaryKernel {
    void (*rotate)(const int32_t* x, const int32_t* cosine, const int32_t* sine, int64_t rows, int64_t heads, int64_t half,
                   int32_t multiplier, int32_t shift, int8_t* y);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(IntRotaryKernel, int_rotary_kernel)
