// Rows of channels as slots of a quantised cache, and back: see slots.py.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

constexpr int64_t SLOT_GROUP = 32;  // channels with a scale

static inline int64_t slot_groups(int64_t depth) { return (depth + SLOT_GROUP - 1) / SLOT_GROUP; }
// Of a slot with 8 or 4 bits a channel, without and with the zeros that fill its last word.
static inline int64_t used_bytes(int64_t depth, int64_t bits) {
    return bits == 8 ? depth + 2 * slot_groups(depth) : 19 * slot_groups(depth);
}
static inline int64_t slot_bytes(int64_t depth, int64_t bits) { return (used_bytes(depth, bits) + 3) / 4 * 4; }

// x: [rows, depth]; slots: [rows, slot_bytes]
struct QuantizeCacheKernel {
    void (*to_8_bits)(const float* x, int64_t rows, int64_t depth, uint8_t* slots);
    void (*to_4_bits)(const float* x, int64_t rows, int64_t depth, uint8_t* slots);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(QuantizeCacheKernel, quantize_cache_kernel)
