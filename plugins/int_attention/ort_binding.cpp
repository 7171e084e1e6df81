#include <algorithm>

#include "plugins/int_attention/kernel.h"
#include "plugins/integer_constants.h"
#include "plugins/ort/broadcast.h"
#include "plugins/ort/factors.h"
#include "plugins/ort/operator.h"
#include "plugins/ort/product.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 8192;        // scores of a piece of parallel work, about 5 microseconds
constexpr int64_t ENOUGH = 48;         // pieces: a multiple of 2, 3, 4, 6, 8, 12 and 16
constexpr int64_t PACKED = 3;          // query, key and value in one tensor
constexpr int64_t MAXIMUM_HEADS = 1 << 16;
constexpr int64_t BIASED_DEPTH = 1 << 16;  // of a head with a bias, so that a score has 32 bits
constexpr int64_t LEAST_QUERIES = 128; // of a head that is divided: each part packs the keys and values again

// Which rows of the mask, or of the bias, the queries of a head have.
template <typename Rows, typename T>
class OfScores {
public:
    // Throws Error unless the tensor broadcasts to `scores`, [batch, heads, queries, keys]. It need not be there.
    OfScores(const char* name, const Tensor& tensor, const T* data, const Shape& scores)
        : data_(data), rows_(name, tensor ? tensor.shape : Shape(), scores), queries_(scores.axis(2)) {}

    // head: of all heads of the batch.
    Rows at(int64_t head, int64_t query) const {
        if (data_ == nullptr) return {nullptr, 0, 0};
        return {data_ + rows_.start(head * queries_ + query), queries_ > 1 ? rows_.start(1) : 0, rows_.step()};
    }

private:
    const T* data_;
    BroadcastRows rows_;
    int64_t queries_;
};

class IntAttention final : public Kernel {
public:
    explicit IntAttention(const Node& node)
        : kernel_(int_attention_kernel(node.isa())),
          heads_(node.integer("num_heads")),
          exp_(exp_constants(node.real("scale"))),
          packed_(node.integer("packed")) {
        if (heads_ < 1 || heads_ > MAXIMUM_HEADS) {
            throw Error("num_heads: " + std::to_string(heads_) + ", expected 1 to " + std::to_string(MAXIMUM_HEADS));
        }
    }

    // query [B, Lq, C], key [B, Lk, C], value [B, Lk, C] int8, packed: [..., 3C] each; multiplier [C|1], shift [C|1]
    // int32, optional mask bool and bias int32 that broadcast to [B, heads, Lq, Lk] -> context [B, Lq, C] int8
    void compute(const Context& context) const override {
        const Tensor query = context.input(0), key = context.input(1), value = context.input(2);
        check_shapes(query.shape, key.shape, value.shape);
        const int64_t batch = query.shape.axis(0), queries = query.shape.axis(1), stride = query.shape.axis(2);
        const int64_t width = packed_ ? stride / PACKED : stride, keys = key.shape.axis(1), depth = width / heads_;
        const Shape scores = {batch, heads_, queries, keys};
        const Tensor mask = context.input(5), bias = context.input(6);
        const OfScores<AttentionMask, uint8_t> masks("mask", mask, mask ? mask.as_mask() : nullptr, scores);
        const OfScores<AttentionBias, int32_t> biases("bias", bias, bias ? bias.as<int32_t>() : nullptr, scores);
        if (bias && !mask) throw Error("bias: without a mask, expected both");
        if (bias && depth > BIASED_DEPTH) {
            throw Error("bias: heads of " + std::to_string(depth) + " channels, expected at most " +
                        std::to_string(BIASED_DEPTH));
        }
        const Tensor y = context.output(0, {batch, queries, width});
        if (query.shape.elements() == 0) return;  // before the factors: without elements there may be any number of channels

        const Factors factors(context.input(3), context.input(4), width, {0, 0});
        const int64_t third = packed_ * width;
        const AttentionHead all = {
            query.as<int8_t>(), key.as<int8_t>() + third, value.as<int8_t>() + 2 * third, y.as_mutable<int8_t>(),
            queries, keys, depth, stride, width, {nullptr, 0, 0}, {nullptr, 0, 0}, exp_, factors.multiplier(), factors.shift()};
        const int64_t most = (queries + LEAST_QUERIES - 1) / LEAST_QUERIES;
        const int64_t parts = std::min(most, (ENOUGH - 1) / (batch * heads_) + 1);
        const int64_t grain = std::max<int64_t>(BLOCK * parts / std::max<int64_t>(queries * keys, 1), 1);
        context.parallel_for(batch * heads_ * parts, grain, [&](int64_t begin, int64_t end) {
            const Scratch scratch(size_t(kernel_.scratch_bytes(keys, depth)));
            for (int64_t piece = begin; piece < end; ++piece) {
                const int64_t head = piece / parts, part = piece % parts;
                const int64_t first = queries * part / parts, last = queries * (part + 1) / parts;
                AttentionHead queries_of_head = part_of(all, head / heads_, head % heads_, first, last);
                queries_of_head.mask = masks.at(head, first);
                queries_of_head.bias = biases.at(head, first);
                kernel_.head(queries_of_head, scratch.as<void>());
            }
        });
    }

private:
    void check_shapes(const Shape& query, const Shape& key, const Shape& value) const {
        if (query.rank() != 3) throw Error("query: shape " + query.text() + ", expected [batch, queries, heads·depth]");
        const int64_t batch = query.axis(0), width = query.axis(2), parts = packed_ ? PACKED * heads_ : heads_;
        if (width % parts != 0) {
            throw Error("query: " + std::to_string(width) + " channels do not divide into " + (packed_ ? "3 times " : "") +
                        std::to_string(heads_) + " heads");
        }
        check_depth(width / parts);
        if (key.rank() != 3 || key.axis(0) != batch || key.axis(2) != width) {
            throw Error("key: shape " + key.text() + ", expected [" + std::to_string(batch) + ", keys, " +
                        std::to_string(width) + "]");
        }
        if (value != key) throw Error("value: shape " + value.text() + ", expected the key's " + key.text());
        if (key.axis(1) > MAX_ROW) {
            throw Error("key: " + std::to_string(key.axis(1)) + " keys, expected at most " + std::to_string(MAX_ROW));
        }
    }

    // Queries first..last-1 of one head of one sequence, without its mask.
    static AttentionHead part_of(const AttentionHead& all, int64_t sequence, int64_t head, int64_t first,
                                 int64_t last) {
        AttentionHead part = all;
        const int64_t channel = head * all.depth;
        const int64_t row = sequence * all.queries + first, key = sequence * all.keys * all.stride + channel;
        part.query += row * all.stride + channel;
        part.context += row * all.context_stride + channel;
        part.key += key;
        part.value += key;
        part.queries = last - first;
        part.multiplier += channel;
        part.shift += channel;
        return part;
    }

    const IntAttentionKernel& kernel_;
    int64_t heads_;
    ExpConstants exp_;
    int64_t packed_;
};

}  // namespace

std::unique_ptr<Kernel> create_int_attention(const Node& node) { return std::make_unique<IntAttention>(node); }

}  // namespace intaglio::ort
