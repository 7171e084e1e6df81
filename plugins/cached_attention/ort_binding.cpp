#include <algorithm>
#include <vector>

#include "plugins/cached_attention/kernel.h"
#include "plugins/ort/broadcast.h"
#include "plugins/ort/checked.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {
namespace {

constexpr int64_t ROWS = 32;             // queries of a piece of work, which share the reading of keys and values
constexpr int64_t PRODUCTS = 1 << 18;    // of a piece, some microseconds

class CachedAttention final : public Kernel {
public:
    explicit CachedAttention(const Node& node)
        : kernel_(cached_attention_kernel(node.isa())), scale_(node.real("scale")) {}

    // query [B, heads, tokens, depth], key [B, kv_heads, capacity, depth], value [B, kv_heads, capacity, value_depth]
    // float32, mask bool that broadcasts to [B, heads, tokens, capacity] -> context [B, heads, tokens, value_depth]
    void compute(const Context& context) const override {
        const Tensor query = context.input(0), key = context.input(1), value = context.input(2), mask = context.input(3);
        check_shapes(query.shape, key.shape, value.shape);
        const int64_t batch = query.shape.axis(0), heads = query.shape.axis(1), tokens = query.shape.axis(2);
        const int64_t depth = query.shape.axis(3), kv_heads = key.shape.axis(1), capacity = key.shape.axis(2);
        const int64_t width = value.shape.axis(3), group = heads / std::max<int64_t>(kv_heads, 1);
        const BroadcastRows masks("mask", mask.shape, {batch, heads, tokens, capacity});
        const Tensor output = context.output(0, {batch, heads, tokens, width});
        if (output.shape.elements() == 0) return;

        const float* const x = query.as<float>();
        float* const y = output.as_mutable<float>();
        if (capacity == 0) {
            std::fill(y, y + output.shape.elements(), 0.0f);
            return;
        }
        const uint8_t* const attended = mask.as_mask();
        const int64_t most = std::max<int64_t>(ROWS / group, 1), parts = (tokens + most - 1) / most;
        const int64_t rows = group * std::min(most, tokens);
        const int64_t work = checked_product(checked_product(rows, capacity), depth + width);
        const int64_t grain = std::max<int64_t>(PRODUCTS / std::max<int64_t>(work, 1), 1);
        context.parallel_for(checked_product(batch * kv_heads, parts), grain, [&](int64_t begin, int64_t end) {
            const Scratch scratch(size_t(kernel_.scratch_bytes(rows)));
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
                const CacheHead head = {key.as<float>() + kv_head * capacity * depth,
                                        value.as<float>() + kv_head * capacity * width, capacity, depth, width};
                kernel_.attend({queries.data(), contexts.data(), slots.data(), group * count, masks.step()}, head, scale_,
                               scratch.as<void>());
            }
        });
    }

private:
    static void check_shapes(const Shape& query, const Shape& key, const Shape& value) {
        if (query.rank() != 4) {
            throw Error("query: shape " + query.text() + ", expected [batch, heads, tokens, depth]");
        }
        const std::string batch = std::to_string(query.axis(0));
        if (key.rank() != 4 || key.axis(0) != query.axis(0) || key.axis(3) != query.axis(3)) {
            throw Error("key: shape " + key.text() + ", expected [" + batch + ", kv_heads, capacity, " +
                        std::to_string(query.axis(3)) + "]");
        }
        if (value.rank() != 4 || value.axis(0) != key.axis(0) || value.axis(1) != key.axis(1) || value.axis(2) != key.axis(2)) {
            throw Error("value: shape " + value.text() + ", expected [" + batch + ", " + std::to_string(key.axis(1)) + ", " +
                        std::to_string(key.axis(2)) + ", value_depth]");
        }
        const int64_t heads = query.axis(1), kv_heads = key.axis(1);
        if (kv_heads == 0 ? heads != 0 : heads % kv_heads != 0) {
            throw Error("key: " + std::to_string(kv_heads) + " heads, expected a divisor of the query's " + std::to_string(heads));
        }
    }

    const CachedAttentionKernel& kernel_;
    float scale_;
};

}  // namespace

std::unique_ptr<Kernel> create_cached_attention(const Node& node) { return std::make_unique<CachedAttention>(node); }

}  // namespace intaglio::ort
