// How large this processor's caches are.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace intaglio {

// Bytes of one core's second-level cache; 512 KiB, which is little, where the system does not tell. Each instruction
// set's copy of the kernels has its own copy of this: shared, it might be the one that this processor cannot run.
[[maybe_unused]] static int64_t second_level_cache() {
    static std::atomic<int64_t> known{0};  // asking takes microseconds
    int64_t bytes = known.load(std::memory_order_relaxed);
    if (bytes == 0) {
#if defined(_SC_LEVEL2_CACHE_SIZE)
        bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
        if (bytes <= 0) bytes = 512 << 10;
        known.store(bytes, std::memory_order_relaxed);
    }
    return bytes;
}

}  // namespace intaglio
