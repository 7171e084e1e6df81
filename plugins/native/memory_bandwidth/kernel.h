// Reading memory as fast as one thread can: what kernels that are bound by it are compared with.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

struct MemoryBandwidthKernel {
    // The sum of `bytes` bytes as 64-bit integers, so that nothing is left out; a multiple of 512, aligned to 64.
    int64_t (*read)(const void* memory, int64_t bytes);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(MemoryBandwidthKernel, memory_bandwidth_kernel)
