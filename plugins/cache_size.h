// How large this processor's caches are.
#pragma once

#include <unistd.h>

#include <cstdint>

namespace intaglio {

// Bytes of one core's second-level cache; 512 KiB, which is little, where the system does not tell. Each instruction
// set's copy of the kernels has its own copy of this: shared, it might be the one that this processor cannot run.
[[maybe_unused]] static int64_t second_level_cache() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    static const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (bytes > 0) return bytes;
#endif
    return 512 << 10;
}

}  // namespace intaglio
