#include "plugins/ort/operator.h"
#include "plugins/requantize/kernel.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 16384;  // elements of a piece of parallel work: 64 KiB of x, about 10 microseconds

class Requantize final : public Kernel {
public:
    explicit Requantize(const Node& node)
        : kernel_(requantize_kernel(node.isa())), bits_(int(node.integer("bits"))) {}

    // x [..., C] int32, multiplier [C|1] int32, shift [C|1] int32 -> y [..., C]
    void compute(const Context& context) const override {
        const Tensor x = context.input(0), multiplier = context.input(1), shift = context.input(2);
        const Shape& shape = x.shape;
        const int64_t channels = shape.rank() > 0 ? shape.axis(-1) : 1;
        check_per_channel("multiplier", multiplier, channels);
        check_per_channel("shift", shift, channels);
        check_shifts(shift);
        const Tensor y = context.output(0, shape);
        if (shape.elements() == 0) return;
        if (bits_ == 8) {
            run(context, x, multiplier, shift, y.as_mutable<int8_t>(), kernel_.to_int8, kernel_.to_int8_uniform);
        } else {
            run(context, x, multiplier, shift, y.as_mutable<int32_t>(), kernel_.to_int16, kernel_.to_int16_uniform);
        }
    }

private:
    template <typename T, typename PerChannel, typename Uniform>
    static void run(const Context& context, const Tensor& x, const Tensor& multiplier, const Tensor& shift, T* y,
                    PerChannel per_channel, Uniform uniform) {
        const int32_t* data = x.as<int32_t>();
        if (multiplier.shape.elements() == 1 && shift.shape.elements() == 1) {
            const int32_t m = *multiplier.as<int32_t>(), s = *shift.as<int32_t>();
            context.parallel_for(x.shape.elements(), BLOCK, [&](int64_t begin, int64_t end) {
                uniform(data + begin, end - begin, m, s, y + begin);
            });
            return;
        }
        const int64_t channels = x.shape.axis(-1);
        const PerChannelValues m(multiplier, channels), s(shift, channels);
        const int64_t grain = std::max<int64_t>(BLOCK / std::max<int64_t>(channels, 1), 1);
        context.parallel_for(x.shape.rows(), grain, [&](int64_t begin, int64_t end) {
            per_channel(data + begin * channels, end - begin, channels, m.data(), s.data(), y + begin * channels);
        });
    }

    const RequantizeKernel& kernel_;
    int bits_;
};

}  // namespace

std::unique_ptr<Kernel> create_requantize(const Node& node) { return std::make_unique<Requantize>(node); }

}  // namespace intaglio::ort
