#include <algorithm>
#include <cstring>
#include <optional>

#include "plugins/int_softmax/kernel.h"
#include "plugins/integer_constants.h"
#include "plugins/ort/broadcast.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 16384;  // elements of a piece of parallel work, 5 to 10 microseconds

class IntSoftmax final : public Kernel {
public:
    explicit IntSoftmax(const Node& node) : kernel_(int_softmax_kernel(node.isa())) {
        const Dyadic out = softmax_constants(node.real("out_scale"));
        constants_ = {exp_constants(node.real("scale")), out.multiplier, out.shift};
    }

    // x [..., L] int32, optional mask bool that broadcasts to it -> y [..., L] int8
    void compute(const Context& context) const override {
        const Tensor x = context.input(0), mask = context.input(1);
        const int64_t length = x.shape.axis(-1);
        if (length > MAX_ROW) {
            throw Error("x: rows of " + std::to_string(length) + " entries, expected at most " + std::to_string(MAX_ROW));
        }
        std::optional<BroadcastRows> masks;
        if (mask) masks.emplace("mask", mask.shape, x.shape);
        const int32_t* data = x.as<int32_t>();
        int8_t* y = context.output(0, x.shape).as_mutable<int8_t>();
        const uint8_t* keep = mask ? mask.as_mask() : nullptr;
        const int64_t grain = std::max<int64_t>(BLOCK / std::max<int64_t>(length, 1), 1);
        context.parallel_for(length > 0 ? x.shape.rows() : 0, grain, [&](int64_t begin, int64_t end) {
            const Scratch scratch(size_t(length + 64) * sizeof(int16_t));
            for (int64_t row = begin; row < end; ++row) {
                const uint8_t* kept = masks ? keep + masks->start(row) : nullptr;
                int8_t* to = y + row * length;
                if (masks && masks->step() == 0) {  // one entry for the whole row
                    if (!*kept) {
                        std::memset(to, 0, size_t(length));
                        continue;
                    }
                    kept = nullptr;
                }
                kernel_.row(data + row * length, kept, length, constants_, scratch.as<int16_t>(), to);
            }
        });
    }

private:
    const IntSoftmaxKernel& kernel_;
    SoftmaxConstants constants_;
};

}  // namespace

std::unique_ptr<Kernel> create_int_softmax(const Node& node) { return std::make_unique<IntSoftmax>(node); }

}  // namespace intaglio::ort
