#include <algorithm>
#include <vector>

#include "plugins/cached_attention/kernel.h"
#include "plugins/ort/broadcast.h"
#include "plugins/ort/operator.h"
#include "plugins/quantize_cache/kernel.h"

namespace intaglio::ort {
namespace {

constexpr int64_t ROWS = 32;             // queries of a piece of work, which share the reading of keys and values
constexpr int64_t PRODUCTS = 1 << 18;    // of a piece, some microseconds
constexpr int64_t ENOUGH = 32;           // pieces for all threads; of fewer, each segment of slots is a piece of its own
constexpr int64_t MAXIMUM_DEPTH = 1 << 20;  // of slots, so that no length overflows

// The queries of a piece of work, and where their results go.
struct Rows {
    Rows(int64_t most, int64_t step)
        : queries(size_t(most)), contexts(size_t(most)), elsewhere(size_t(most)), slots(size_t(most)), mask_step(step) {}

    CachedQueries all() const { return {queries.data(), contexts.data(), slots.data(), count, mask_step}; }
    // The same, with results one after another in memory of their own.
    CachedQueries into(float* memory, int64_t width) {
        for (int64_t i = 0; i < count; ++i) elsewhere[size_t(i)] = memory + i * width;
        return {queries.data(), elsewhere.data(), slots.data(), count, mask_step};
    }

    std::vector<const float*> queries;
    std::vector<float*> contexts, elsewhere;
    std::vector<const uint8_t*> slots;
    int64_t mask_step, count = 0;
};

// What the contexts of a segment are relative to.
struct Segment {
    explicit Segment(int64_t rows) : largest(size_t(rows)), total(size_t(rows)) {}
    RowSums sums() { return {largest.data(), total.data()}; }

    std::vector<float> largest, total;
};

// A call, divided into pieces: some tokens of all heads of queries that a head of the cache serves.
struct Call {
    const float* x;
    float* y;
    const uint8_t *attended, *keys, *values;
    const BroadcastRows& masks;
    CacheHead head;                // but for where it lies
    int64_t kv_heads, group, tokens;  // of all sequences; heads of queries for each of them
    int64_t most = std::max<int64_t>(ROWS / group, 1), parts = (tokens + most - 1) / most;  // tokens of a piece, pieces of a head
    int64_t rows = group * std::min(most, tokens), pieces = checked_product(kv_heads, parts);
    int64_t segments = (head.capacity - 1) / SEGMENT + 1;

    Rows empty() const { return Rows(rows, masks.step()); }

    // The heads of a sequence lie one after another, those of a group too.
    void choose(int64_t piece, Rows& chosen) const {
        const int64_t kv_head = piece / parts, first = piece % parts * most, count = std::min(most, tokens - first);
        for (int64_t i = 0; i < group * count; ++i) {
            const int64_t row = (kv_head * group + i / count) * tokens + first + i % count;
            chosen.queries[size_t(i)] = x + row * head.depth;
            chosen.contexts[size_t(i)] = y + row * head.value_depth;
            chosen.slots[size_t(i)] = attended + masks.start(row);
        }
        chosen.count = group * count;
    }

    // The head of the cache for a piece, and for the next one.
    CacheHead head_of(int64_t piece, int64_t next) const {
        const int64_t key_bytes = head.capacity * bytes_of_slot(head.depth, head.key_bits);
        const int64_t value_bytes = head.capacity * bytes_of_slot(head.value_depth, head.value_bits);
        CacheHead found = head;
        found.key = keys + piece / parts * key_bytes;
        found.value = values + piece / parts * value_bytes;
        found.next_key = keys + next / parts * key_bytes;
        found.next_value = values + next / parts * value_bytes;
        return found;
    }

    // Pieces, or segments of them, that are worth a thread's start: of `length` slots.
    int64_t grain(int64_t length) const {
        const int64_t work = checked_product(checked_product(rows, length), head.depth + head.value_depth);
        return std::max<int64_t>(PRODUCTS / std::max<int64_t>(work, 1), 1);
    }
};

class CachedAttention final : public Kernel {
public:
    explicit CachedAttention(const Node& node)
        : kernel_(cached_attention_kernel(node.isa())),
          scale_(node.real("scale")),
          key_bits_(node.integer("key_bits")),
          value_bits_(node.integer("value_bits")),
          value_depth_(node.integer("value_depth")) {
        const bool floats = key_bits_ == 32;
        if (floats != (value_bits_ == 32) || floats != (value_depth_ == 0) || value_depth_ < 0 ||
            value_depth_ > MAXIMUM_DEPTH) {
            throw Error("key_bits, value_bits, value_depth: " + std::to_string(key_bits_) + ", " + std::to_string(value_bits_) +
                        ", " + std::to_string(value_depth_) + ", expected 32, 32, 0, or fewer bits of both and a depth up to 2^20");
        }
    }

    // query [B, heads, tokens, depth] float32, key [B, kv_heads, capacity, depth], value [B, kv_heads, capacity, value_depth]
    // float32 or, in the last axis, a slot's bytes or words of 4, mask bool that broadcasts to [B, heads, tokens, capacity]
    // -> context [B, heads, tokens, value_depth] float32
    void compute(const Context& context) const override {
        const Tensor query = context.input(0), key = context.input(1), value = context.input(2), mask = context.input(3);
        check_shapes(query.shape, key, value);
        const int64_t batch = query.shape.axis(0), heads = query.shape.axis(1), tokens = query.shape.axis(2);
        const int64_t depth = query.shape.axis(3), kv_heads = key.shape.axis(1), capacity = key.shape.axis(2);
        const int64_t width = value_depth_ > 0 ? value_depth_ : value.shape.axis(3), group = heads / std::max<int64_t>(kv_heads, 1);
        const BroadcastRows masks("mask", mask.shape, {batch, heads, tokens, capacity});
        const Tensor output = context.output(0, {batch, heads, tokens, width});
        if (output.shape.elements() == 0) return;

        const float* const x = query.as<float>();
        float* const y = output.as_mutable<float>();
        if (capacity == 0) {
            std::fill(y, y + output.shape.elements(), 0.0f);
            return;
        }
        const CacheHead head = {nullptr, nullptr, nullptr, nullptr, capacity, depth, width, key_bits_, value_bits_};
        const Call call = {x, y, mask.as_mask(), bytes(key), bytes(value), masks, head, batch * kv_heads, group, tokens};
        if (call.pieces >= ENOUGH || call.segments == 1) {
            by_pieces(context, call);
        } else {
            by_segments(context, call);
        }
    }

private:
    void by_pieces(const Context& context, const Call& call) const {
        const int64_t width = call.head.value_depth;
        context.parallel_for(call.pieces, call.grain(call.head.capacity), [&](int64_t begin, int64_t end) {
            const Scratch scratch(size_t(kernel_.scratch_bytes(call.rows, call.head)));
            Rows chosen = call.empty();
            Segment before(call.rows), added(call.rows);
            std::vector<float> contexts(size_t(call.segments > 1 ? call.rows * width : 0));
            for (int64_t piece = begin; piece < end; ++piece) {
                const CacheHead head = call.head_of(piece, std::min(piece + 1, end - 1));
                call.choose(piece, chosen);
                const CachedQueries queries = chosen.all();
                attend(queries, head, 0, before, scratch);
                for (int64_t segment = 1; segment < call.segments; ++segment) {
                    attend(chosen.into(contexts.data(), width), head, segment, added, scratch);
                    kernel_.add(queries, width, before.sums(), contexts.data(), added.sums());
                }
                kernel_.finish(queries, width, before.sums());
            }
        });
    }

    // The same bits, where there are fewer pieces than threads may be.
    void by_segments(const Context& context, const Call& call) const {
        const int64_t width = call.head.value_depth, segments = call.segments, all = call.pieces * segments;
        const int64_t length = checked_product(call.rows, width);  // of a segment's contexts
        std::vector<float> contexts(size_t(checked_product(all, length)));
        std::vector<Segment> found(size_t(all), Segment(call.rows));
        context.parallel_for(all, call.grain(SEGMENT), [&](int64_t begin, int64_t end) {
            const Scratch scratch(size_t(kernel_.scratch_bytes(call.rows, call.head)));
            Rows chosen = call.empty();
            for (int64_t i = begin; i < end; ++i) {
                call.choose(i / segments, chosen);
                attend(chosen.into(contexts.data() + i * length, width), call.head_of(i / segments, std::min(i + 1, end - 1) / segments),
                       i % segments, found[size_t(i)], scratch);
            }
        });
        Rows chosen = call.empty();
        for (int64_t piece = 0; piece < call.pieces; ++piece) {
            call.choose(piece, chosen);
            const CachedQueries queries = chosen.all();
            const int64_t first = piece * segments;
            for (int64_t row = 0; row < chosen.count; ++row) {
                std::copy_n(contexts.data() + first * length + row * width, width, chosen.contexts[size_t(row)]);
            }
            const RowSums sums = found[size_t(first)].sums();
            for (int64_t i = first + 1; i < first + segments; ++i) {
                kernel_.add(queries, width, sums, contexts.data() + i * length, found[size_t(i)].sums());
            }
            kernel_.finish(queries, width, sums);
        }
    }

    void attend(const CachedQueries& queries, const CacheHead& head, int64_t segment, Segment& found, const Scratch& scratch) const {
        const int64_t first = segment * SEGMENT, end = std::min(head.capacity, first + SEGMENT);
        kernel_.attend(queries, head, first, end, scale_, found.sums(), scratch.as<void>());
    }

    const uint8_t* bytes(const Tensor& slots) const {
        const bool words = key_bits_ == 32 || slots.dtype == DType::float32;
        return words ? reinterpret_cast<const uint8_t*>(slots.as<float>()) : slots.as<uint8_t>();
    }

    // Of a slot's bytes.
    static int64_t elements(const Tensor& slots, int64_t bytes) { return slots.dtype == DType::float32 ? bytes / 4 : bytes; }

    void check_shapes(const Shape& query, const Tensor& keys, const Tensor& values) const {
        const Shape &key = keys.shape, &value = values.shape;
        if (query.rank() != 4) {
            throw Error("query: shape " + query.text() + ", expected [batch, heads, tokens, depth]");
        }
        const std::string batch = std::to_string(query.axis(0));
        const int64_t width = key_bits_ == 32 ? query.axis(3) : elements(keys, slot_bytes(query.axis(3), key_bits_));
        if (key.rank() != 4 || key.axis(0) != query.axis(0) || key.axis(3) != width) {
            throw Error("key: shape " + key.text() + ", expected [" + batch + ", kv_heads, capacity, " +
                        std::to_string(width) + "]");
        }
        if (value.rank() != 4 || value.axis(0) != key.axis(0) || value.axis(1) != key.axis(1) || value.axis(2) != key.axis(2)) {
            throw Error("value: shape " + value.text() + ", expected [" + batch + ", " + std::to_string(key.axis(1)) + ", " +
                        std::to_string(key.axis(2)) + ", value_depth]");
        }
        const int64_t length = elements(values, value_depth_ > 0 ? slot_bytes(value_depth_, value_bits_) : 0);
        if (value_depth_ > 0 && value.axis(3) != length) {
            throw Error("value: " + std::to_string(value.axis(3)) + " entries a slot, expected " + std::to_string(length));
        }
        const int64_t heads = query.axis(1), kv_heads = key.axis(1);
        if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
            throw Error("key: " + std::to_string(kv_heads) + " heads, expected a divisor of the query's " + std::to_string(heads));
        }
    }

    const CachedAttentionKernel& kernel_;
    float scale_;
    int64_t key_bits_, value_bits_, value_depth_;
};

}  // namespace

std::unique_ptr<Kernel> create_cached_attention(const Node& node) { return std::make_unique<CachedAttention>(node); }

}  // namespace intaglio::ort
