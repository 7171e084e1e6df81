// i-softmax of one row of int32, as int8.
#pragma once

#include <cstdint>

#include "plugins/integer_math.h"
#include "plugins/cpu/isa.h"

namespace intaglio {

struct SoftmaxConstants {
    ExpConstants exp;
    int32_t multiplier, shift;  // 1 / out_scale: multiplier in 2^30..2^31 - 1, shift in 6..30
};

// x: [length] int32, length at most MAX_ROW
// mask: [length], not 0 where an entry counts; null where all do
// scratch: [length rounded up to a multiple of 64] int16
// y: [length] int8; 0 where the mask is false
struct IntSoftmaxKernel {
    void (*row)(const int32_t* x, const uint8_t* mask, int64_t length, const SoftmaxConstants& constants, int16_t* scratch,
                int8_t* y);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(IntSoftmaxKernel, int_softmax_kernel)
