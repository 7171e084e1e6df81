#include <algorithm>

#include "plugins/ort/operator.h"
#include "plugins/scaled_clamp/kernel.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 16384;  // elements of a piece of parallel work, some microseconds

class ScaledClamp final : public Kernel {
public:
    explicit ScaledClamp(const Node& node)
        : kernel_(scaled_clamp_kernel(node.isa())), low_(node.real("low")), high_(node.real("high")) {
        if (!(low_ <= high_)) throw Error("low: " + std::to_string(low_) + ", expected at most high");
    }

    // x [..., C] float32, optional factor [C|1] float32 -> y [..., C] float32
    void compute(const Context& context) const override {
        const Tensor x = context.input(0), factor = context.input(1);
        const int64_t channels = x.shape.rank() > 0 ? x.shape.axis(-1) : 1;
        if (factor) check_per_channel("factor", factor, channels);
        const float one = 1;
        const float* const factors = factor ? factor.as<float>() : &one;
        const int64_t step = factor && factor.shape.elements() == channels;
        const float* const from = x.as<float>();
        float* const y = context.output(0, x.shape).as_mutable<float>();
        if (x.shape.elements() == 0) return;
        context.parallel_for(x.shape.rows(), std::max<int64_t>(BLOCK / channels, 1), [&](int64_t begin, int64_t end) {
            kernel_.clamp(from + begin * channels, end - begin, channels, factors, step, low_, high_, y + begin * channels);
        });
    }

private:
    const ScaledClampKernel& kernel_;
    float low_, high_;
};

}  // namespace

std::unique_ptr<Kernel> create_scaled_clamp(const Node& node) { return std::make_unique<ScaledClamp>(node); }

}  // namespace intaglio::ort
