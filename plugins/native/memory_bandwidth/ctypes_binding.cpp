// What plugins/native/memory_bandwidth/__init__.py calls.

#include <cstdint>

#include "plugins/native/memory_bandwidth/kernel.h"

// memory: `bytes` bytes, a multiple of 512, aligned to 64
extern "C" __attribute__((visibility("default"))) int64_t intaglio_read_memory(int isa, const void* memory,
                                                                               int64_t bytes) {
    return intaglio::memory_bandwidth_kernel(intaglio::Isa(isa)).read(memory, bytes);
}
