// A mask of bits applied to logits.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

struct LogitMaskKernel {
    // masked[i] = logits[i] + (bit i of the mask ? 0 : -infinity)
    //
    // logits, masked: [n] float32, not overlapping; octets: [(n + 7) / 8], the first bit of a byte is the lowest
    void (*apply)(const float* logits, const uint8_t* octets, int64_t n, float* masked);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(LogitMaskKernel, logit_mask_kernel)
