// How large this processor's caches are.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace intaglio {

// The cache size that the system reports, read once as that takes microseconds; `otherwise` if it reports none. Each
// instruction set's copy of the kernels has its own copy of these functions: shared, it might be the one that this
// processor cannot run.
[[maybe_unused]] static int64_t cache_bytes(std::atomic<int64_t>& known, int name, int64_t otherwise) {
    int64_t bytes = known.load(std::memory_order_relaxed);
    if (bytes == 0) {
        bytes = name < 0 ? 0 : sysconf(name);
        if (bytes <= 0) bytes = otherwise;
        known.store(bytes, std::memory_order_relaxed);
    }
    return bytes;
}

#if defined(_SC_LEVEL1_DCACHE_SIZE)
constexpr int FIRST_LEVEL = _SC_LEVEL1_DCACHE_SIZE, SECOND_LEVEL = _SC_LEVEL2_CACHE_SIZE;
#else
constexpr int FIRST_LEVEL = -1, SECOND_LEVEL = -1;
#endif

// Bytes of one core's first-level cache of data; 32 KiB, the least of today's, where the system does not tell.
[[maybe_unused]] static int64_t first_level_cache() {
    static std::atomic<int64_t> known{0};
    return cache_bytes(known, FIRST_LEVEL, 32 << 10);
}

// Bytes of one core's second-level cache; 512 KiB, which is little, where the system does not tell.
[[maybe_unused]] static int64_t second_level_cache() {
    static std::atomic<int64_t> known{0};
    return cache_bytes(known, SECOND_LEVEL, 512 << 10);
}

}  // namespace intaglio
