// Integer attention of one head.
//
// Keys that are masked for every query contribute nothing, and exact sums do not depend on the keys' order: so only the
// others, with their values, are packed, and a padding mask saves its share of all the work.
//
// Blocks of ROWS queries pass by the packed keys and values: scores into a matrix [ROWS, keys] of int32, each row's
// exponentials, 15 bits, into another of int16, and then the averages of the values that they are the weights of.
#include "plugins/int_attention/kernel.h"

#include "plugins/cpu/simd_exp.h"
#if INTAGLIO_TILES
#include "plugins/int_attention/values_in_tiles.h"
#else
#include "plugins/int_attention/values_in_vectors.h"
#endif

namespace intaglio::INTAGLIO_ISA {
namespace {

// Everything that one head needs.
struct Workspace {
    int64_t keys;    // how many are kept
    int64_t scores_stride, weights_stride;

    int32_t* kept;              // [keys] which they are
    int8_t *key, *value;        // [keys, depth] copies of them, where they are not the first ones
    uint8_t* mask;              // [keys] a row of a mask that has one entry for all keys
    PackedMatrix packed_keys;   // [depth, keys]
    Values values;
    int32_t* queries;           // [ROWS, packed_stride(depth)], where they cannot be read in their place
    int32_t* scores;            // [ROWS, scores_stride]
    int16_t* weights;           // [ROWS, weights_stride] the scores' exponentials in Q15
    int32_t* sums;              // [ROWS, PANEL]
    Requantizer* output;        // [panels, 2] for LANES channels each

    // With all keys kept.
    Workspace(int64_t all_keys, int64_t depth, Memory& memory) : keys(all_keys), values(all_keys, depth, memory) {
        const int64_t padded = ceil_divide(keys, PANEL) * PANEL;
        scores_stride = spread_stride<int32_t>(padded);
        weights_stride = spread_stride<int16_t>(padded);
        kept = memory.take<int32_t>(keys);
        key = memory.take<int8_t>(keys * depth);
        value = memory.take<int8_t>(keys * depth);
        mask = memory.take<uint8_t>(keys);
        packed_keys = packed_matrix(depth, keys, memory.take<char>(packed_bytes(depth, keys)));
        queries = memory.take<int32_t>(ROWS * packed_stride(depth));
        scores = memory.take<int32_t>(ROWS * scores_stride);
        weights = memory.take<int16_t>(ROWS * weights_stride);
        sums = memory.take<int32_t>(ROWS * PANEL);
        output = memory.take<Requantizer>(values.panels * 2);
    }
};

int64_t scratch_bytes(int64_t keys, int64_t depth) {
    Memory memory(nullptr);
    const Workspace counted(keys, depth, memory);
    return memory.bytes;
}

// --- packing --------------------------------------------------------------------------------------------------------

// Lists the keys that are not masked for every query.
void choose_keys(const AttentionHead& head, Workspace& w) {
    const AttentionMask& mask = head.mask;
    const bool per_key = mask.data != nullptr && mask.query_stride == 0;
    w.keys = 0;
    for (int64_t key = 0; key < head.keys; ++key) {
        w.kept[w.keys] = int32_t(key);
        w.keys += !per_key || mask.data[key * mask.key_stride] != 0;
    }
}

Rows kept_rows(const int8_t* x, const AttentionHead& head, const Workspace& w, int8_t* copies) {
    if (w.kept[w.keys - 1] == w.keys - 1) return {x, head.stride};
    for (int64_t i = 0; i < w.keys; ++i) {
        std::memcpy(copies + i * head.depth, x + w.kept[i] * head.stride, size_t(head.depth));
    }
    return {copies, head.depth};
}

void pack_keys(const Rows& keys, Workspace& w) {
    w.packed_keys.columns = w.keys;
    w.packed_keys.panels = ceil_divide(w.keys, PANEL);
    for (int64_t panel = 0; panel < w.packed_keys.panels; ++panel) {
        pack_columns(w.packed_keys, panel, keys.data, keys.stride);
    }
}

// --- a block of queries ---------------------------------------------------------------------------------------------

// The mask's row for a query, null where it keeps all that are packed.
const uint8_t* mask_row(const AttentionMask& mask, int64_t query, const Workspace& w) {
    if (mask.data == nullptr || mask.query_stride == 0) return nullptr;
    const uint8_t* row = mask.data + query * mask.query_stride;
    if (mask.key_stride != 0) return row;
    std::memset(w.mask, *row, size_t(w.keys));
    return w.mask;
}

// Adds what the bias has for a query and the kept keys to the query's scores.
void add_bias(const AttentionBias& bias, int64_t query, const Workspace& w, int32_t* scores) {
    const int32_t* row = bias.data + query * bias.query_stride;
    const bool in_order = w.kept[w.keys - 1] == w.keys - 1 && bias.key_stride != 0;
    const I32 low = set32(-(1 << 30)), high = set32(1 << 30);
    int64_t i = 0;
    for (; in_order && i + LANES <= w.keys; i += LANES) {
        store(scores + i, load32(scores + i) + min(max(load32(row + i), low), high));
    }
    for (; i < w.keys; ++i) {
        const int32_t added = row[w.kept[i] * bias.key_stride];
        scores[i] += added < -(1 << 30) ? -(1 << 30) : added > 1 << 30 ? 1 << 30 : added;
    }
}

// Scores and their exponentials of `rows` queries, `query` and the following; factors [rows] of the weighted averages.
void weigh(Multiplier& multiplier, const AttentionHead& head, int64_t query, int64_t rows, const VectorExp& exp, const Workspace& w,
           int32_t* factors) {
    const int8_t* const first = head.query + query * head.stride;
    const bool unpacked = in_place(head.stride, head.depth);
    if (!unpacked) pack_left(first, head.stride, rows, head.depth, w.queries);
    const int32_t* const queries = unpacked ? reinterpret_cast<const int32_t*>(first) : w.queries;
    const int64_t stride = unpacked ? head.stride / GROUP : packed_stride(head.depth);
    for (int64_t panel = 0; panel < w.packed_keys.panels; ++panel) {
        multiplier(queries, stride, rows, w.packed_keys.panel(panel), w.packed_keys.groups,
                   w.packed_keys.start + panel * PANEL, w.scores + panel * PANEL, w.scores_stride);
    }
    for (int64_t row = 0; row < rows; ++row) {
        int32_t* scores = w.scores + row * w.scores_stride;
        if (head.bias.data != nullptr) add_bias(head.bias, query + row, w, scores);
        const uint8_t* mask = mask_row(head.mask, query + row, w);
        const int32_t top = row_largest(scores, mask, w.keys);
        factors[row] = average_factor(exp_row(scores, mask, w.keys, top, exp, w.weights + row * w.weights_stride));
    }
}

// The averages of one panel of channels, requantised.
void put_context(const AttentionHead& head, int64_t query, int64_t rows, int64_t panel, const Workspace& w) {
    for (int half = 0; half < 2; ++half) {
        const int64_t channel = panel * PANEL + half * LANES, left = head.depth - channel;
        if (left <= 0) return;
        const Requantizer r = w.output[2 * panel + half];
        int8_t* context = head.context + query * head.context_stride + channel;
        for (int64_t row = 0; row < rows; ++row, context += head.context_stride) {
            const I32 y = requantize(load32(w.sums + row * PANEL + half * LANES), r);
            left >= LANES ? store_saturated(context, y) : store_saturated(context, y, int(left));
        }
    }
}

// --- one head -------------------------------------------------------------------------------------------------------

void attention_head(const AttentionHead& head, void* scratch) {
    Memory memory(scratch);
    Workspace w(head.keys, head.depth, memory);
    choose_keys(head, w);
    if (w.keys == 0) {  // a row without keys is zero
        for (int64_t row = 0; row < head.queries; ++row) {
            std::memset(head.context + row * head.context_stride, 0, size_t(head.depth));
        }
        return;
    }
    pack_keys(kept_rows(head.key, head, w, w.key), w);
    w.values.pack(kept_rows(head.value, head, w, w.value), w.keys);
    for (int64_t i = 0; i * LANES < head.depth; ++i) {
        const int n = int(smaller(LANES, head.depth - i * LANES));
        w.output[i] = requantizer(load32(head.multiplier + i * LANES, n), load32(head.shift + i * LANES, n));
    }
    const VectorExp exp(head.exp);
    Multiplier multiplier;
    const int64_t blocks = ceil_divide(head.queries, ROWS);  // balanced: a tile of few rows is bound by loads
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t query = head.queries * i / blocks, rows = head.queries * (i + 1) / blocks - query;
        int32_t factors[ROWS];
        weigh(multiplier, head, query, rows, exp, w, factors);
        const Weights weights = {w.weights, w.weights_stride, rows, factors};
        w.values.prepare(weights);
        for (int64_t panel = 0; panel < w.values.panels; ++panel) {
            w.values.average(multiplier, weights, panel, w.sums);
            put_context(head, query, rows, panel, w);
        }
    }
}

}  // namespace

const IntAttentionKernel int_attention_kernel = {scratch_bytes, attention_head};

}  // namespace intaglio::INTAGLIO_ISA
