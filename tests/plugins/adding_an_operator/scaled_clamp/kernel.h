// x·factor of a matrix, limited to low..high.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

// x, y: [rows, channels] float32
// factor: [channels] float32 and step 1, or [1] and step 0
struct ScaledClampKernel {
    void (*clamp)(const float* x, int64_t rows, int64_t channels, const float* factor, int64_t step, float low, float high,
                  float* y);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(ScaledClampKernel, scaled_clamp_kernel)
