// Attention by blocks of slots with a running maximum ("online softmax"), so that nothing grows with the capacity.
//
// Scores are products of rows that lie along `depth` in memory, queries and keys alike: FLOATS of them are added up at
// once, those of 4 rows and 4 slots (AVX-512), and then all their lanes by `sums`. So keys are read as they lie in the cache,
// once for all rows. A block in which no row attends to a slot is not read at all: the end of the cache beyond a
// sequence, what lies before a window, and the half of a prompt above its diagonal cost the reading of their mask.
// A block of quantised slots becomes floats first, in memory that stays in the first-level cache.
#include "plugins/cached_attention/kernel.h"

#include "plugins/quantize_cache/read_slots.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t BLOCK = 64;  // slots
constexpr int SECOND_LEVEL = 2;  // cache to prefetch into: the first one has room for too few requests
constexpr int64_t FEW_ROWS = 4;  // of queries, with which reading the cache takes longer than multiplying
constexpr float NOTHING = -__builtin_inff();

// Of one piece of work.
struct Workspace {
    float* scores;  // [rows, BLOCK], and then their exponentials
    bool* attends;  // [rows] to a slot of the block
    float* key;     // [BLOCK, depth] of quantised slots, and space for what read_slots writes beyond; else nothing
    float* value;   // [BLOCK, value_depth]
    int64_t bytes = 0;

    Workspace(int64_t rows, const CacheHead& head, void* memory) {
        const auto base = reinterpret_cast<uintptr_t>(memory);
        scores = take<float>(base, rows * BLOCK);
        attends = take<bool>(base, rows);
        const int64_t slots = head.key_bits == 32 ? 0 : BLOCK;
        key = take<float>(base, slots * head.depth + SLOT_GROUP);
        value = take<float>(base, slots * head.value_depth + SLOT_GROUP);
    }

private:
    template <typename T>
    T* take(uintptr_t base, int64_t count) {
        T* const array = reinterpret_cast<T*>(base + uintptr_t(bytes));
        bytes += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
        return array;
    }
};

static int64_t scratch_bytes(int64_t rows, const CacheHead& head) { return Workspace(rows, head, nullptr).bytes; }

// Slots as they lie in the cache, to be prefetched one by one. The processor's own prefetching begins again with each head's keys,
// and with its values: where few rows share what is read, it is asked for before.
struct Ahead {
    const uint8_t* first = nullptr;
    int64_t bytes = 0;  // of a slot; 0: nothing is

    void prefetch(int64_t slot) const {
        for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(first + slot * bytes + i, 0, SECOND_LEVEL);
    }
};

// The slots of a block, as floats.
struct Block {
    const float* key;    // [slots, depth]
    const float* value;  // [slots, value_depth]
    int64_t slots, depth, value_depth;
    Ahead scoring, averaging;  // what is prefetched meanwhile
};

static Block read_block(const CacheHead& head, int64_t first, int64_t slots, const Workspace& w) {
    if (head.key_bits == 32) {
        return {static_cast<const float*>(head.key) + first * head.depth,
                static_cast<const float*>(head.value) + first * head.value_depth, slots, head.depth, head.value_depth, {}, {}};
    }
    const uint8_t *const keys = static_cast<const uint8_t*>(head.key), *const values = static_cast<const uint8_t*>(head.value);
    read_slots(keys + first * slot_bytes(head.depth, head.key_bits), slots, head.depth, head.key_bits, w.key);
    read_slots(values + first * slot_bytes(head.value_depth, head.value_bits), slots, head.value_depth, head.value_bits,
               w.value);
    return {w.key, w.value, slots, head.depth, head.value_depth, {}, {}};
}

// Lets a block that begins at slot `first` prefetch what is read after it; of floats, its own values come first. `goes_on`: with the
// next block, else with the next head.
static void look_ahead(Block& block, const CacheHead& head, int64_t first, bool goes_on) {
    const auto slots_at = [&](const void* slots, int64_t depth, int64_t bits, int64_t slot) {
        const int64_t bytes = bytes_of_slot(depth, bits);
        return Ahead{static_cast<const uint8_t*>(slots) + slot * bytes, bytes};
    };
    const int64_t next = goes_on ? first + BLOCK : 0;
    const Ahead keys = slots_at(goes_on ? head.key : head.next_key, head.depth, head.key_bits, next);
    const Ahead values = slots_at(goes_on ? head.value : head.next_value, head.value_depth, head.value_bits, next);
    if (head.key_bits == 32) {
        block.scoring = slots_at(head.value, head.value_depth, head.value_bits, first);
        block.averaging = keys;
    } else {
        block.scoring = keys;
        block.averaging = values;
    }
}

// --- scores ---------------------------------------------------------------------------------------------------------

// Scores of ROWS queries and FLOATS / ROWS keys, into scores[row·BLOCK + key].
template <int ROWS>
INTAGLIO_FLOAT void multiply_keys(const float* const* query, const float* const* key, int64_t depth, float* scores) {
    constexpr int KEYS = FLOATS / ROWS;
    F32 products[FLOATS] = {};
    int64_t k = 0;
    for (; k + FLOATS <= depth; k += FLOATS) {
        F32 keys[KEYS];
        for (int s = 0; s < KEYS; ++s) keys[s] = load_float(key[s] + k);
        for (int r = 0; r < ROWS; ++r) {
            const F32 x = load_float(query[r] + k);
            for (int s = 0; s < KEYS; ++s) products[r * KEYS + s] = multiply_add(x, keys[s], products[r * KEYS + s]);
        }
    }
    float found[FLOATS];
    store_float(found, sums(products));
    for (; k < depth; ++k) {
        for (int i = 0; i < FLOATS; ++i) found[i] += query[i / KEYS][k] * key[i % KEYS][k];
    }
    for (int r = 0; r < ROWS; ++r) __builtin_memcpy(scores + r * BLOCK, found + r * KEYS, KEYS * sizeof(float));
}

// Scores of ROWS queries and the slots of a block; those beyond its end are its last slot's.
template <int ROWS>
static void score_block(const float* const* query, const Block& block, float* scores) {
    constexpr int KEYS = FLOATS / ROWS;
    for (int64_t slot = 0; slot < block.slots; slot += KEYS) {
        const float* key[KEYS];
        for (int s = 0; s < KEYS; ++s) {
            key[s] = block.key + (slot + s < block.slots ? slot + s : block.slots - 1) * block.depth;
        }
        for (int s = 0; s < KEYS && slot + s < block.slots; ++s) block.scoring.prefetch(slot + s);
        multiply_keys<ROWS>(query, key, block.depth, scores + slot);
    }
}

// --- values ---------------------------------------------------------------------------------------------------------

constexpr int WIDE = FLOATS == 16 ? 4 : 2;  // vectors of a row's context in registers

// context[row][channels...] += weights [ROWS, slots] · values [slots, channels], of VECTORS vectors of channels. The first of
// them prefetch.
template <int ROWS, int VECTORS>
INTAGLIO_FLOAT void add_values(float* const* context, const float* weights, const Block& block, int64_t channel) {
    F32 sum[ROWS][VECTORS];
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECTORS; ++v) sum[r][v] = load_float(context[r] + channel + v * FLOATS);
    }
    for (int64_t slot = 0; slot < block.slots; ++slot) {
        if (channel == 0) block.averaging.prefetch(slot);
        const float* const row = block.value + slot * block.value_depth + channel;
        F32 x[VECTORS];
        for (int v = 0; v < VECTORS; ++v) x[v] = load_float(row + v * FLOATS);
        for (int r = 0; r < ROWS; ++r) {
            const F32 weight = set_float(weights[r * BLOCK + slot]);
            for (int v = 0; v < VECTORS; ++v) sum[r][v] = multiply_add(weight, x[v], sum[r][v]);
        }
    }
    for (int r = 0; r < ROWS; ++r) {
        for (int v = 0; v < VECTORS; ++v) store_float(context[r] + channel + v * FLOATS, sum[r][v]);
    }
}

template <int ROWS>
static void average_block(float* const* context, const float* weights, const Block& block) {
    const float* const value = block.value;
    const int64_t width = block.value_depth, slots = block.slots;
    int64_t channel = 0;
    for (; channel + WIDE * FLOATS <= width; channel += WIDE * FLOATS) {
        add_values<ROWS, WIDE>(context, weights, block, channel);
    }
    for (; channel + FLOATS <= width; channel += FLOATS) {
        add_values<ROWS, 1>(context, weights, block, channel);
    }
    for (; channel < width; ++channel) {
        for (int r = 0; r < ROWS; ++r) {
            float sum = context[r][channel];
            for (int64_t slot = 0; slot < slots; ++slot) sum += weights[r * BLOCK + slot] * value[slot * width + channel];
            context[r][channel] = sum;
        }
    }
}

// --- a block of slots -----------------------------------------------------------------------------------------------

static bool any(const uint8_t* mask, int64_t step, int64_t slots) {
    if (step == 0) return *mask != 0;
    uint8_t found = 0;
    for (int64_t slot = 0; slot < slots; ++slot) found |= mask[slot];
    return found != 0;
}

// Turn the scores of a row into exponentials relative to the largest so far, and what was added up before with them.
static void weigh(float* scores, const uint8_t* mask, int64_t step, int64_t slots, float scale, float& largest_so_far,
                  float& total, float* context, int64_t width) {
    for (int64_t slot = 0; slot < slots; ++slot) scores[slot] = mask[slot * step] != 0 ? scores[slot] * scale : NOTHING;
    for (int64_t slot = slots; slot < BLOCK; ++slot) scores[slot] = NOTHING;
    F32 top = set_float(largest_so_far);
    for (int64_t slot = 0; slot < BLOCK; slot += FLOATS) top = max(top, load_float(scores + slot));
    const float now = largest(top);
    const F32 from = set_float(now);
    F32 added = set_float(0);
    for (int64_t slot = 0; slot < BLOCK; slot += FLOATS) {
        const F32 weight = exp(load_float(scores + slot) - from);
        store_float(scores + slot, weight);
        added = added + weight;
    }
    if (now != largest_so_far) {
        float factor[FLOATS];
        store_float(factor, largest_so_far == NOTHING ? set_float(0) : exp(set_float(largest_so_far - now)));
        for (int64_t channel = 0; channel < width; ++channel) context[channel] *= factor[0];
        total *= factor[0];
        largest_so_far = now;
    }
    total += sum(added);
}

template <int ROWS>
struct Rows {
    static constexpr int value = ROWS;
};

// Calls work(Rows<n>(), row) for all rows, as many at once as registers allow.
template <typename Work>
INTAGLIO_FLOAT void in_groups(int64_t rows, const Work& work) {
    int64_t row = 0;
    if constexpr (FLOATS == 16) {
        for (; row + 4 <= rows; row += 4) work(Rows<4>(), row);
    }
    if constexpr (FLOATS >= 8) {
        for (; row + 2 <= rows; row += 2) work(Rows<2>(), row);
    }
    for (; row < rows; ++row) work(Rows<1>(), row);
}

static void attend(const CachedQueries& queries, const CacheHead& head, int64_t begin, int64_t end, float scale,
                   const RowSums& sums, void* scratch) {
    const Workspace w(queries.rows, head, scratch);
    const int64_t rows = queries.rows, width = head.value_depth;
    for (int64_t row = 0; row < rows; ++row) {
        sums.largest[row] = NOTHING;
        sums.total[row] = 0;
        __builtin_memset(queries.context[row], 0, uint64_t(width) * sizeof(float));
    }
    for (int64_t first = begin; first < end; first += BLOCK) {
        const int64_t slots = end - first < BLOCK ? end - first : BLOCK;
        bool needed = false;
        for (int64_t row = 0; row < rows; ++row) {
            w.attends[row] = any(queries.mask[row] + first * queries.mask_step, queries.mask_step, slots);
            needed |= w.attends[row];
        }
        if (!needed) continue;
        Block block = read_block(head, first, slots, w);
        if (rows <= FEW_ROWS) {
            const int64_t next = first + BLOCK;
            look_ahead(block, head, first, next < head.capacity && queries.mask[0][next * queries.mask_step] != 0);
        }
        const auto scored = [&](auto size, int64_t row) {
            score_block<decltype(size)::value>(queries.query + row, block, w.scores + row * BLOCK);
        };
        const auto averaged = [&](auto size, int64_t row) {
            average_block<decltype(size)::value>(queries.context + row, w.scores + row * BLOCK, block);
        };
        in_groups(rows, scored);
        for (int64_t row = 0; row < rows; ++row) {
            if (w.attends[row]) {
                weigh(w.scores + row * BLOCK, queries.mask[row] + first * queries.mask_step, queries.mask_step, slots, scale,
                      sums.largest[row], sums.total[row], queries.context[row], width);
            } else {
                __builtin_memset(w.scores + row * BLOCK, 0, BLOCK * sizeof(float));
            }
        }
        in_groups(rows, averaged);
    }
}

static void add(const CachedQueries& queries, int64_t width, const RowSums& sums, const float* context, const RowSums& added) {
    for (int64_t row = 0; row < queries.rows; ++row, context += width) {
        float &largest = sums.largest[row], &total = sums.total[row];
        if (added.largest[row] == NOTHING && added.total[row] == 0) continue;
        const float now = added.largest[row] > largest ? added.largest[row] : largest;
        const float scores[2] = {largest - now, added.largest[row] - now};  // no number stays none
        float lanes[FLOATS] = {}, factors[FLOATS];
        __builtin_memcpy(lanes, scores, sizeof scores);
        store_float(factors, exp(load_float(lanes)));
        if (largest == NOTHING) factors[0] = 0;
        for (int64_t channel = 0; channel < width; ++channel) {
            queries.context[row][channel] = queries.context[row][channel] * factors[0] + context[channel] * factors[1];
        }
        total = total * factors[0] + added.total[row] * factors[1];
        largest = now;
    }
}

static void finish(const CachedQueries& queries, int64_t width, const RowSums& sums) {
    for (int64_t row = 0; row < queries.rows; ++row) {
        const float factor = sums.total[row] != 0 ? 1 / sums.total[row] : 0;  // no number stays none
        for (int64_t channel = 0; channel < width; ++channel) queries.context[row][channel] *= factor;
    }
}

}  // namespace

const CachedAttentionKernel cached_attention_kernel = {scratch_bytes, attend, add, finish};

}  // namespace intaglio::INTAGLIO_ISA
