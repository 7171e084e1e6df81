#include <algorithm>

#include "plugins/int_gelu/kernel.h"
#include "plugins/ort/factors.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 16384;   // elements of a piece of parallel work, about 5 microseconds
constexpr int64_t LEAST_ROWS = 16;  // of a piece: what preparing a channel's factors costs is shared among them

class IntGelu final : public Kernel {
public:
    explicit IntGelu(const Node& node)
        : kernel_(int_gelu_kernel(node.isa())),
          constants_(gelu_constants(node.real("scale"), node.real("out_scale"))),
          out_zero_point_(zero_point(node, "out_zero_point")) {}

    // x [..., C] int32, optional multiplier [C|1] int32 and shift [C|1] int32 -> y [..., C] int8
    void compute(const Context& context) const override {
        const Tensor x = context.input(0);
        const int64_t rows = x.shape.rows(), channels = x.shape.rank() > 0 ? x.shape.axis(-1) : 1;
        const int32_t* data = x.as<int32_t>();
        int8_t* y = context.output(0, x.shape).as_mutable<int8_t>();
        if (x.shape.elements() == 0) return;  // first: without elements there may be any number of channels
        const Dyadic out = {constants_.out_multiplier, constants_.out_shift};
        const Factors factors(context.input(1), context.input(2), channels, out);
        const int64_t grain = std::max(BLOCK / std::max<int64_t>(channels, 1), LEAST_ROWS);
        context.parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
            kernel_.gelu(data + begin * channels, end - begin, channels, constants_, factors.multiplier(), factors.shift(),
                         out_zero_point_, y + begin * channels);
        });
    }

private:
    const IntGeluKernel& kernel_;
    GeluConstants constants_;
    int out_zero_point_;
};

}  // namespace

std::unique_ptr<Kernel> create_int_gelu(const Node& node) { return std::make_unique<IntGelu>(node); }

}  // namespace intaglio::ort
