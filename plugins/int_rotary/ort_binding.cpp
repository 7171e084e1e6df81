#include <algorithm>

#include "plugins/int_rotary/kernel.h"
#include "plugins/ort/factors.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 16384;  // elements of a piece of parallel work, about 5 microseconds
constexpr int64_t MAXIMUM_HEADS = 1 << 16;

class IntRotary final : public Kernel {
public:
    explicit IntRotary(const Node& node) : kernel_(int_rotary_kernel(node.isa())), heads_(node.integer("num_heads")) {
        if (heads_ < 1 || heads_ > MAXIMUM_HEADS) {
            throw Error("num_heads: " + std::to_string(heads_) + ", expected 1 to " + std::to_string(MAXIMUM_HEADS));
        }
    }

    // x [B, L, heads·2·half] int32, cosine and sine [L, half] int32, multiplier [1], shift [1] int32
    // -> y [B, L, heads·2·half] int8
    void compute(const Context& context) const override {
        const Tensor x = context.input(0), cosine = context.input(1), sine = context.input(2);
        const Tensor multiplier = context.input(3), shift = context.input(4);
        check_shapes(x.shape, cosine.shape, sine.shape);
        check_per_channel("multiplier", multiplier, 1);
        check_per_channel("shift", shift, 1);
        check_shifts(shift);
        int8_t* const y = context.output(0, x.shape).as_mutable<int8_t>();
        if (x.shape.elements() == 0) return;
        const int64_t length = x.shape.axis(1), width = x.shape.axis(2), half = width / heads_ / 2;
        const int32_t *data = x.as<int32_t>(), *c = cosine.as<int32_t>(), *s = sine.as<int32_t>();
        const int32_t factor = *multiplier.as<int32_t>(), places = *shift.as<int32_t>();
        context.parallel_for(x.shape.rows(), std::max<int64_t>(BLOCK / width, 1), [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end;) {
                const int64_t last = std::min(end, (row / length + 1) * length), angle = row % length * half;
                kernel_.rotate(data + row * width, c + angle, s + angle, last - row, heads_, half, factor, places,
                               y + row * width);
                row = last;
            }
        });
    }

private:
    void check_shapes(const Shape& x, const Shape& cosine, const Shape& sine) const {
        if (x.rank() != 3) throw Error("x: shape " + x.text() + ", expected [batch, length, heads·depth]");
        if (x.axis(2) % (2 * heads_) != 0) {
            throw Error("x: " + std::to_string(x.axis(2)) + " channels do not divide into " + std::to_string(heads_) +
                        " heads of two halves");
        }
        const int64_t half = x.axis(2) / heads_ / 2;
        if (cosine.rank() != 2 || cosine.axis(0) != x.axis(1) || cosine.axis(1) != half) {
            throw Error("cosine: shape " + cosine.text() + ", expected [" + std::to_string(x.axis(1)) + ", " +
                        std::to_string(half) + "]");
        }
        if (sine != cosine) throw Error("sine: shape " + sine.text() + ", expected the cosine's " + cosine.text());
    }

    const IntRotaryKernel& kernel_;
    int64_t heads_;
};

}  // namespace

std::unique_ptr<Kernel> create_int_rotary(const Node& node) { return std::make_unique<IntRotary>(node); }

}  // namespace intaglio::ort
