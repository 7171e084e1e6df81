// Attention of some tokens to the slots of a cache, in which only the slots that they attend to cost anything.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"
#include "plugins/quantize_cache/kernel.h"

namespace intaglio {

// The tokens of one sequence that one head of keys and values serves: those of all heads of queries in its group.
struct CachedQueries {
    const float* const* query;     // [rows] each a row of `depth`
    float* const* context;         // [rows] each a row of `value_depth`
    const uint8_t* const* mask;    // [rows] each an entry for a slot, `mask_step` apart; any but 0 is true
    int64_t rows, mask_step;
};

// From one slot of a head to the next.
static inline int64_t bytes_of_slot(int64_t depth, int64_t bits) {
    return bits == 32 ? depth * int64_t(sizeof(float)) : slot_bytes(depth, bits);
}

struct CacheHead {
    const void* key;    // [capacity, depth] float32, or [capacity] slots of key_bits, see plugins/quantize_cache
    const void* value;  // [capacity, value_depth] float32, or [capacity] slots of value_bits
    const void *next_key, *next_value;  // which the next call's are likely to be
    int64_t capacity, depth, value_depth, key_bits, value_bits;  // bits: both 32, or both fewer
};

// Slots of a head that are attended to together. Their averages are added to those of the segments before, in order, whether one
// piece of work has them all or each has its own: a row's result has the same bits.
constexpr int64_t SEGMENT = 2048;

// What the context of each row is relative to.
struct RowSums {
    float* largest;  // [rows] score so far; minus infinity where none is attended to
    float* total;    // [rows] of the exponentials of scores less the largest
};

struct CachedAttentionKernel {
    // Bytes of scratch memory that `attend` needs.
    int64_t (*scratch_bytes)(int64_t rows, const CacheHead& head);
    // Attends to slots `first` to `end` - 1: the context of each row is the sum of values times the exponentials. scratch:
    // aligned to 64 bytes.
    void (*attend)(const CachedQueries& queries, const CacheHead& head, int64_t first, int64_t end, float scale,
                   const RowSums& sums, void* scratch);
    // Adds a segment, whose contexts [rows, width] follow each other, to the segments before it.
    void (*add)(const CachedQueries& queries, int64_t width, const RowSums& sums, const float* context, const RowSums& added);
    // Divides the contexts by their totals; that of a row which attends to no slot is zero.
    void (*finish)(const CachedQueries& queries, int64_t width, const RowSums& sums);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(CachedAttentionKernel, cached_attention_kernel)
