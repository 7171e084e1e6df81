#include <algorithm>

#include "plugins/ort/operator.h"
#include "plugins/quantize_cache/kernel.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 8192;  // channels of a piece of parallel work, about 5 microseconds

class QuantizeCache final : public Kernel {
public:
    explicit QuantizeCache(const Node& node)
        : kernel_(quantize_cache_kernel(node.isa())), bits_(node.integer("bits")), element_(node.integer("element_bits") / 8) {}

    // x [..., depth] float32 -> slots [..., slot_bytes] uint8, or the same bytes as [..., slot_bytes / 4] float32
    void compute(const Context& context) const override {
        const Tensor x = context.input(0);
        if (x.shape.rank() == 0 || x.shape.axis(-1) == 0) {
            throw Error("x: shape " + x.shape.text() + ", expected rows of at least 1 channel");
        }
        const int64_t depth = x.shape.axis(-1), bytes = slot_bytes(depth, bits_);
        Shape shape = x.shape;
        shape.set_axis(-1, bytes / element_);
        const Tensor output = context.output(0, shape);
        uint8_t* const slots = element_ == 1 ? output.as_mutable<uint8_t>() : reinterpret_cast<uint8_t*>(output.as_mutable<float>());
        if (shape.elements() == 0) return;
        const float* const data = x.as<float>();
        const auto quantize = bits_ == 8 ? kernel_.to_8_bits : kernel_.to_4_bits;
        context.parallel_for(x.shape.rows(), std::max<int64_t>(BLOCK / depth, 1), [&](int64_t begin, int64_t end) {
            quantize(data + begin * depth, end - begin, depth, slots + begin * bytes);
        });
    }

private:
    const QuantizeCacheKernel& kernel_;
    int64_t bits_, element_;  // element_: the bytes of an element
};

}  // namespace

std::unique_ptr<Kernel> create_quantize_cache(const Node& node) { return std::make_unique<QuantizeCache>(node); }

}  // namespace intaglio::ort
