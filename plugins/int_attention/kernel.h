// Multi-head attention on integers: scores, i-softmax and the weighted average of the values, of one head at a time.
#pragma once

#include <cstdint>

#include "plugins/integer_math.h"
#include "plugins/cpu/isa.h"

namespace intaglio {

// Which keys a query attends to: data[query·query_stride + key·key_stride], in elements; an axis that is broadcast has
// the stride 0. Any element but 0 is true. With data == nullptr it attends to all.
struct AttentionMask {
    const uint8_t* data;
    int64_t query_stride, key_stride;
};

// What is added to the scores, limited to ±2^30; strides as above. With data == nullptr nothing is.
struct AttentionBias {
    const int32_t* data;
    int64_t query_stride, key_stride;
};

// Queries of one head of one sequence, and all its keys and values. Rows lie apart what all heads together are long:
// `stride` elements those of the first three matrices, which may be three times that, `context_stride` the last one's.
struct AttentionHead {
    const int8_t* query;  // [queries, depth]
    const int8_t* key;    // [keys, depth]
    const int8_t* value;  // [keys, depth]
    int8_t* context;      // [queries, depth]
    int64_t queries, keys, depth, stride, context_stride;
    AttentionMask mask;
    AttentionBias bias;
    ExpConstants exp;
    const int32_t *multiplier, *shift;  // [depth], shift in 0..62: from 1/256 of a value's unit to the output's
};

struct IntAttentionKernel {
    // Bytes of scratch memory that `head` needs.
    int64_t (*scratch_bytes)(int64_t keys, int64_t depth);
    // scratch: aligned to 64 bytes. keys <= MAX_ROW, depth < 2^17.
    void (*head)(const AttentionHead& head, void* scratch);
};

}  // namespace intaglio

INTAGLIO_DECLARE_TILE_KERNEL(IntAttentionKernel, int_attention_kernel)
