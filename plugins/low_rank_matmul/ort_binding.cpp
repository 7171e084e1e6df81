#include <algorithm>
#include <vector>

#include "plugins/low_rank_matmul/kernel.h"
#include "plugins/ort/operator.h"
#include "plugins/ort/real.h"

namespace intaglio::ort {
namespace {

constexpr int64_t PRODUCTS = 1 << 15;  // of a piece of parallel work, some microseconds
constexpr int64_t COLUMNS = 512;       // of one

// The matrices of all adapters, [adapters, rank, width].
struct Matrices {
    explicit Matrices(const Tensor& tensor, const char* name) : tensor(tensor) {
        if (tensor.shape.rank() != 3) {
            throw Error(std::string(name) + ": shape " + tensor.shape.text() + ", expected [adapters, rank, channels]");
        }
    }
    int64_t count() const { return tensor.shape.axis(0); }
    int64_t rank() const { return tensor.shape.axis(1); }
    int64_t width() const { return tensor.shape.axis(2); }

    LowRankMatrix matrix(int64_t adapter) const {
        return {static_cast<const uint8_t*>(tensor.data) + bytes() * adapter, rank(), width(), is_half()};
    }
    bool is_zero(int64_t adapter) const {
        const auto* const begin = static_cast<const uint8_t*>(matrix(adapter).numbers);
        return std::all_of(begin, begin + bytes(), [](uint8_t byte) { return byte == 0; });
    }
    bool is_half() const { return tensor.dtype == DType::float16; }
    int64_t bytes() const { return rank() * width() * (is_half() ? 2 : 4); }

    Tensor tensor;
};

class LowRankMatMul final : public Kernel {
public:
    explicit LowRankMatMul(const Node& node) : kernel_(low_rank_matmul_kernel(node.isa())) {
        const Tensor first = node.constant(1), second = node.constant(2);
        if (!first || !second || first.shape.elements() == 0 || second.shape.elements() == 0) return;
        const Matrices shrinking(first, "first"), expanding(second, "second");
        for (int64_t i = 0; i < std::min(shrinking.count(), expanding.count()); ++i) {
            changes_.push_back(!shrinking.is_zero(i) && !expanding.is_zero(i));
        }
    }

    // x [B, T, K], first [A, rank, K], second [A, rank, N], factor [A], adapter [B] int32, scale [B, 1, 1], y [B, T, N]
    // -> sum [B, T, N] as y; float32 or float16, factor and scale float32
    void compute(const Context& context) const override {
        const Tensor x = context.input(0), y = context.input(6);
        const Matrices first(context.input(1), "first"), second(context.input(2), "second");
        const Tensor factor = context.input(3), adapter = context.input(4), scale = context.input(5);
        check_shapes(x.shape, first, second, factor.shape, adapter.shape, scale.shape, y.shape);
        const Tensor output = context.output(0, y.shape);
        check_like(output, y);
        if (y.shape.elements() == 0) return;
        const RealInput values(x), addend(y);
        const RealOutput sum(output);
        const int64_t tokens = x.shape.axis(1);
        const Rows rows{values.data(), addend.data(), sum.data(), factor.as<float>(), scale.as<float>(), tokens, first.width(), second.width()};
        const std::vector<Block> blocks = changed_tokens(adapter, first, rows);
        if (!blocks.empty()) add_changes(context, blocks, first, second, rows);
        sum.finish();
    }

private:
    // Some tokens of the batch, as [batch, tokens] counts them, with the same adapter.
    struct Block {
        int64_t adapter, count, tokens[LOW_RANK_TOKENS];
    };

    struct Rows {
        const float* x;       // [batch, tokens, depth]
        const float* y;       // [batch, tokens, width]
        float* sum;           // [batch, tokens, width]
        const float* factor;  // [adapters]
        const float* scale;   // [batch]
        int64_t tokens, depth, width;
    };

    static void check_shapes(const Shape& x, const Matrices& first, const Matrices& second, const Shape& factor, const Shape& adapter,
                             const Shape& scale, const Shape& y) {
        if (x.rank() != 3 || x.axis(2) != first.width()) {
            throw Error("x: shape " + x.text() + ", expected [batch, tokens, " + std::to_string(first.width()) + "]");
        }
        if (second.count() != first.count() || second.rank() != first.rank()) {
            throw Error("second: shape " + second.tensor.shape.text() + ", expected [" + std::to_string(first.count()) + ", " +
                        std::to_string(first.rank()) + ", channels]");
        }
        const Shape adapters({first.count()});
        if (factor != adapters) throw Error("factor: shape " + factor.text() + ", expected " + adapters.text());
        const int64_t batch = x.axis(0);
        if (adapter != Shape({batch})) throw Error("adapter: shape " + adapter.text() + ", expected " + Shape({batch}).text());
        if (scale != Shape({batch, 1, 1})) throw Error("scale: shape " + scale.text() + ", expected " + Shape({batch, 1, 1}).text());
        const Shape expected{batch, x.axis(1), second.width()};
        if (y != expected) throw Error("y: shape " + y.text() + ", expected " + expected.text());
    }

    // The tokens that an adapter changes, those of one adapter side by side; the results of the others are copied.
    std::vector<Block> changed_tokens(const Tensor& adapter, const Matrices& first, const Rows& rows) const {
        const int32_t* const numbers = adapter.as<int32_t>();
        const int64_t count = first.count();
        std::vector<int64_t> changed;
        for (int64_t row = 0; row < adapter.shape.axis(0); ++row) {
            if (numbers[row] < 0 || numbers[row] >= count) {
                throw Error("adapter: " + std::to_string(numbers[row]) + ", expected 0 to " + std::to_string(count - 1));
            }
            if (first.rank() > 0 && (changes_.empty() || changes_[size_t(numbers[row])])) {
                changed.push_back(row);
                continue;
            }
            const int64_t size = rows.tokens * rows.width;
            std::copy_n(rows.y + row * size, size, rows.sum + row * size);
        }
        std::stable_sort(changed.begin(), changed.end(), [&](int64_t a, int64_t b) { return numbers[a] < numbers[b]; });
        std::vector<Block> blocks;
        for (const int64_t row : changed) {
            for (int64_t token = row * rows.tokens; token < (row + 1) * rows.tokens; ++token) {
                if (blocks.empty() || blocks.back().adapter != numbers[row] || blocks.back().count == LOW_RANK_TOKENS) {
                    blocks.push_back({numbers[row], 0, {}});
                }
                Block& block = blocks.back();
                block.tokens[block.count++] = token;
            }
        }
        return blocks;
    }

    void add_changes(const Context& context, const std::vector<Block>& blocks, const Matrices& first, const Matrices& second,
                     const Rows& rows) const {
        const int64_t rank = first.rank(), of_block = LOW_RANK_TOKENS * rank;
        const Scratch scratch(size_t(checked_product(int64_t(blocks.size()) * of_block, int64_t(sizeof(float)))));
        float* const shrunk = scratch.as<float>();  // [blocks][tokens of one][rank]
        struct Pointers {
            const float *x[LOW_RANK_TOKENS], *y[LOW_RANK_TOKENS];
            float *hidden[LOW_RANK_TOKENS], *sum[LOW_RANK_TOKENS], scale[LOW_RANK_TOKENS];
        };
        const auto pointers = [&](int64_t number) {
            const Block& block = blocks[size_t(number)];
            Pointers found{};
            for (int64_t t = 0; t < block.count; ++t) {
                const int64_t token = block.tokens[t];
                found.x[t] = rows.x + token * rows.depth;
                found.y[t] = rows.y + token * rows.width;
                found.hidden[t] = shrunk + number * of_block + t * rank;
                found.sum[t] = rows.sum + token * rows.width;
                found.scale[t] = rows.scale[token / rows.tokens] * rows.factor[block.adapter];
            }
            return found;
        };
        for_parts(context, blocks, rank, LOW_RANK_ROWS, rows.depth, [&](int64_t number, int64_t begin, int64_t end) {
            const Block& block = blocks[size_t(number)];
            const Pointers p = pointers(number);
            kernel_.shrink(first.matrix(block.adapter), begin, end, p.x, p.scale, block.count, p.hidden);
        });
        for_parts(context, blocks, rows.width, COLUMNS, rank, [&](int64_t number, int64_t begin, int64_t end) {
            const Block& block = blocks[size_t(number)];
            const Pointers p = pointers(number);
            kernel_.expand(second.matrix(block.adapter), begin, end, p.hidden, p.y, block.count, p.sum);
        });
    }

    // Calls work(block, begin, end) for ranges of 0..length-1 of each block, on several threads, each range but the last a multiple
    // of `step`; `products`: of each token for one of the length.
    template <typename Work>
    static void for_parts(const Context& context, const std::vector<Block>& blocks, int64_t length, int64_t step, int64_t products,
                          const Work& work) {
        const int64_t parts = std::max<int64_t>((length + step - 1) / step, 1);
        const int64_t of_part = std::max<int64_t>(step * products * blocks.front().count, 1);
        const int64_t grain = std::max<int64_t>(PRODUCTS / of_part, 1);
        context.parallel_for(int64_t(blocks.size()) * parts, grain, [&](int64_t begin, int64_t end) {
            while (begin < end) {
                const int64_t number = begin / parts, first = begin % parts;
                const int64_t last = std::min(first + end - begin, parts);
                work(number, first * step, std::min(last * step, length));
                begin += last - first;
            }
        });
    }

    const LowRankMatMulKernel& kernel_;
    std::vector<bool> changes_;  // of constant matrices, by adapter: whether it changes anything
};

}  // namespace

std::unique_ptr<Kernel> create_low_rank_matmul(const Node& node) { return std::make_unique<LowRankMatMul>(node); }

}  // namespace intaglio::ort
