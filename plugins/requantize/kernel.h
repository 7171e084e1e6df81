// Dyadic requantisation of a matrix: y = clip(floor((x·multiplier + 2^(shift-1)) / 2^shift)).
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

// x: [rows, channels] int32
// multiplier, shift: [channels] int32, shift in 0..62
// y: [rows, channels] int8, or int32 holding 16-bit values
struct RequantizeKernel {
    void (*to_int8)(const int32_t* x, int64_t rows, int64_t channels, const int32_t* multiplier, const int32_t* shift,
                    int8_t* y);
    void (*to_int16)(const int32_t* x, int64_t rows, int64_t channels, const int32_t* multiplier, const int32_t* shift,
                     int32_t* y);
    // The same with one multiplier and shift for all; x: [count] int32.
    void (*to_int8_uniform)(const int32_t* x, int64_t count, int32_t multiplier, int32_t shift, int8_t* y);
    void (*to_int16_uniform)(const int32_t* x, int64_t count, int32_t multiplier, int32_t shift, int32_t* y);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(RequantizeKernel, requantize_kernel)
