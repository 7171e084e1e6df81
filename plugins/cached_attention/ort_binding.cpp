#include <algorithm>
#include <vector>

#include "plugins/cached_attention/kernel.h"
#include "plugins/ort/broadcast.h"
#include "plugins/ort/checked.h"
#include "plugins/ort/operator.h"
#include "plugins/quantize_cache/kernel.h"

namespace intaglio::ort {
namespace {

constexpr int64_t ROWS = 32;             // queries of a piece of work, which share the reading of keys and values
constexpr int64_t PRODUCTS = 1 << 18;    // of a piece, some microseconds
constexpr int64_t MAXIMUM_DEPTH = 1 << 20;  // of slots, so that no length overflows

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
    // float32 or, in the last axis, a slot's bytes, mask bool that broadcasts to [B, heads, tokens, capacity]
    // -> context [B, heads, tokens, value_depth] float32
    void compute(const Context& context) const override {
        const Tensor query = context.input(0), key = context.input(1), value = context.input(2), mask = context.input(3);
        check_shapes(query.shape, key.shape, value.shape);
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
        const uint8_t *const keys = bytes(key), *const values = bytes(value), *const attended = mask.as_mask();
        const int64_t key_bytes = bytes_of_slot(depth, key_bits_), value_bytes = bytes_of_slot(width, value_bits_);
        const int64_t most = std::max<int64_t>(ROWS / group, 1), parts = (tokens + most - 1) / most;
        const int64_t rows = group * std::min(most, tokens);
        const int64_t work = checked_product(checked_product(rows, capacity), depth + width);
        const int64_t grain = std::max<int64_t>(PRODUCTS / std::max<int64_t>(work, 1), 1);
        context.parallel_for(checked_product(batch * kv_heads, parts), grain, [&](int64_t begin, int64_t end) {
            CacheHead head = {nullptr, nullptr, nullptr, nullptr, capacity, depth, width, key_bits_, value_bits_};
            const Scratch scratch(size_t(kernel_.scratch_bytes(rows, head)));
            std::vector<const float*> queries(static_cast<size_t>(rows));
            std::vector<float*> contexts(static_cast<size_t>(rows));
            std::vector<const uint8_t*> slots(static_cast<size_t>(rows));
            for (int64_t piece = begin; piece < end; ++piece) {
                const int64_t kv_head = piece / parts, first = piece % parts * most;
                const int64_t count = std::min(most, tokens - first);
                for (int64_t i = 0; i < group * count; ++i) {
                    // The heads of a sequence lie one after another, those of a group too.
                    const int64_t row = (kv_head * group + i / count) * tokens + first + i % count;
                    queries[size_t(i)] = x + row * depth;
                    contexts[size_t(i)] = y + row * width;
                    slots[size_t(i)] = attended + masks.start(row);
                }
                head.key = keys + kv_head * capacity * key_bytes;
                head.value = values + kv_head * capacity * value_bytes;
                const int64_t next_head = std::min(piece + 1, end - 1) / parts;
                head.next_key = keys + next_head * capacity * key_bytes;
                head.next_value = values + next_head * capacity * value_bytes;
                kernel_.attend({queries.data(), contexts.data(), slots.data(), group * count, masks.step()}, head, scale_,
                               scratch.as<void>());
            }
        });
    }

private:
    const uint8_t* bytes(const Tensor& slots) const {
        return key_bits_ == 32 ? reinterpret_cast<const uint8_t*>(slots.as<float>()) : slots.as<uint8_t>();
    }

    void check_shapes(const Shape& query, const Shape& key, const Shape& value) const {
        if (query.rank() != 4) {
            throw Error("query: shape " + query.text() + ", expected [batch, heads, tokens, depth]");
        }
        const std::string batch = std::to_string(query.axis(0));
        const int64_t width = key_bits_ == 32 ? query.axis(3) : slot_bytes(query.axis(3), key_bits_);
        if (key.rank() != 4 || key.axis(0) != query.axis(0) || key.axis(3) != width) {
            throw Error("key: shape " + key.text() + ", expected [" + batch + ", kv_heads, capacity, " +
                        std::to_string(width) + "]");
        }
        if (value.rank() != 4 || value.axis(0) != key.axis(0) || value.axis(1) != key.axis(1) || value.axis(2) != key.axis(2)) {
            throw Error("value: shape " + value.text() + ", expected [" + batch + ", " + std::to_string(key.axis(1)) + ", " +
                        std::to_string(key.axis(2)) + ", value_depth]");
        }
        if (value_depth_ > 0 && value.axis(3) != slot_bytes(value_depth_, value_bits_)) {
            throw Error("value: " + std::to_string(value.axis(3)) + " bytes a slot, expected " +
                        std::to_string(slot_bytes(value_depth_, value_bits_)));
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
