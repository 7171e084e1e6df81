// The sum of two matrices with factors of their own, rounded once, with 8 or 16 bits.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

// A matrix of int8 or int32 that may be broadcast. Its strides are in elements.
struct AddOperand {
    const void* data;
    int64_t row_stride;  // any; 0 where one row stands for all
    int64_t step;        // from one channel to the next: 1, or 0 where one entry stands for the row
};

// [channels] each; multipliers in ±(2^30 - 1), shift in 0..62
struct AddFactors {
    const int32_t *x_multiplier, *y_multiplier, *shift;
};

struct IntAddKernel {
    // x, y: [rows, channels]; sum: [rows, channels] int8, or int32 holding 16-bit values
    using Add = void (*)(const AddOperand& x, const AddOperand& y, int64_t rows, int64_t channels, const AddFactors& factors,
                         void* sum);
    Add add[2][2][2];  // [whether x is int8][whether y is int8][whether sum is int8]
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(IntAddKernel, int_add_kernel)
