// i-GELU of a matrix: int32 requantised to 16 bits at the inner scale, the polynomial there, and its result to int8.
#pragma once

#include <cstdint>

#include "plugins/integer_math.h"
#include "plugins/cpu/isa.h"

namespace intaglio {

// x: [rows, channels] int32
// multiplier, shift: [channels] int32, shift in 0..62: from the inner scale to y's
// out_zero_point: added to the results, -128..127
// y: [rows, channels] int8
struct IntGeluKernel {
    void (*gelu)(const int32_t* x, int64_t rows, int64_t channels, const GeluConstants& constants,
                 const int32_t* multiplier, const int32_t* shift, int out_zero_point, int8_t* y);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(IntGeluKernel, int_gelu_kernel)
