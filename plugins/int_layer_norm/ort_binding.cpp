#include <algorithm>

#include "plugins/int_layer_norm/kernel.h"
#include "plugins/integer_constants.h"
#include "plugins/ort/factors.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 4096;  // elements of a piece of parallel work, about 3 microseconds

int32_t single(const char* name, const Tensor& tensor) {
    if (tensor.shape != Shape{1}) throw Error(std::string(name) + ": shape " + tensor.shape.text() + ", expected [1]");
    return *tensor.as<int32_t>();
}

// The residual input and its factors: all of them, or none.
class Residual {
public:
    Residual(const Context& context, const Shape& shape) : tensor_(context.input(5)) {
        const Tensor x_multiplier = context.input(6), multiplier = context.input(7), shift = context.input(8);
        const int given = bool(tensor_) + bool(x_multiplier) + bool(multiplier) + bool(shift);
        if (given == 0) return;
        if (given < 4) throw Error("residual, x_multiplier, residual_multiplier and sum_shift: expected all or none");
        if (tensor_.shape != shape) {
            throw Error("residual: shape " + tensor_.shape.text() + ", expected that of x, " + shape.text());
        }
        factors = {single("x_multiplier", x_multiplier), single("residual_multiplier", multiplier),
                   single("sum_shift", shift), tensor_.dtype == DType::int8};
        check_term_multiplier("x_multiplier", x_multiplier);
        check_term_multiplier("residual_multiplier", multiplier);
        check_shifts(shift);
    }

    explicit operator bool() const { return bool(tensor_); }

    // From this element on; null without a residual.
    const void* at(int64_t element) const {
        if (!tensor_) return nullptr;
        return factors.is_int8 ? static_cast<const void*>(tensor_.as<int8_t>() + element) : tensor_.as<int32_t>() + element;
    }

    ResidualFactors factors = {};

private:
    Tensor tensor_;
};

class IntLayerNorm final : public Kernel {
public:
    explicit IntLayerNorm(const Node& node)
        : kernel_(int_layer_norm_kernel(node.isa())),
          scale_(node.real("scale")),
          weight_scale_(node.real("weight_scale")),
          bias_scale_(node.real("bias_scale")),
          out_scale_(node.real("out_scale")),
          wide_scale_(node.real("wide_scale")),
          epsilon_(node.real("epsilon")) {
        const Inputs inputs = {node.constant(1), node.constant(2), node.constant(3), node.constant(4)};
        const bool constant = inputs.weight && inputs.bias &&
                              (node.input_count() <= 3 || inputs.multiplier) && (node.input_count() <= 4 || inputs.shift);
        if (!constant) return;
        const Prepared prepared(*this, inputs, inputs.weight.shape.elements());
        table_ = Buffer(prepared.bytes());
        vectors_ = kernel_.prepare(prepared.parameters, table_.as<void>());
    }

    // x [..., C] int32, weight [C] int32, bias [C] int32, optional multiplier [C|1] int32 and shift [C|1] int32,
    // optional residual [..., C] int8|int32 with x_multiplier, residual_multiplier and sum_shift [1] int32
    // -> y [..., C] int8, optional wide [..., C] int32
    void compute(const Context& context) const override {
        const Tensor x = context.input(0);
        const Inputs inputs = {context.input(1), context.input(2), context.input(3), context.input(4)};
        const int64_t channels = x.shape.axis(-1);
        Prepared prepared(*this, inputs, channels);
        const Residual residual(context, x.shape);
        prepared.parameters.residual = residual.factors;
        const Scratch made(table_ ? 0 : prepared.bytes());
        const void* table = table_ ? table_.as<void>() : made.as<void>();
        if (!(table_ ? vectors_ : kernel_.prepare(prepared.parameters, made.as<void>()))) table = nullptr;
        const int32_t* data = x.as<int32_t>();
        int8_t* y = context.output(0, x.shape).as_mutable<int8_t>();
        const Tensor second = context.output(1, x.shape);
        int32_t* wide = second ? second.as_mutable<int32_t>() : nullptr;
        context.parallel_for(x.shape.rows(), std::max<int64_t>(BLOCK / channels, 1), [&](int64_t begin, int64_t end) {
            const Scratch deviations(size_t(channels + 64) * sizeof(int16_t));
            const Scratch sums(residual ? size_t(channels) * sizeof(int32_t) : 0);
            const LayerNormScratch scratch = {deviations.as<int16_t>(), sums.as<int32_t>()};
            for (int64_t row = begin; row < end; ++row) {
                const int64_t start = row * channels;
                kernel_.row(data + start, residual.at(start), prepared.parameters, table, scratch, y + start,
                            wide == nullptr ? nullptr : wide + start);
            }
        });
    }

private:
    struct Inputs {
        Tensor weight, bias, multiplier, shift;
    };

    // The constants for this number of channels; checks the other inputs.
    struct Prepared {
        Prepared(const IntLayerNorm& node, const Inputs& inputs, int64_t channels)
            : constants(layer_norm_constants(channels, node.scale_, node.weight_scale_, node.bias_scale_, node.out_scale_,
                                             node.wide_scale_, node.epsilon_)),
              factors(inputs.multiplier, inputs.shift, channels, {constants.out_multiplier, constants.out_shift}),
              kernel(node.kernel_) {
            for (const auto& [name, tensor] : {std::pair("weight", &inputs.weight), std::pair("bias", &inputs.bias)}) {
                if (tensor->shape != Shape{channels}) {
                    throw Error(std::string(name) + ": shape " + tensor->shape.text() + ", expected " + Shape{channels}.text());
                }
            }
            parameters = {constants, inputs.weight.as<int32_t>(), inputs.bias.as<int32_t>(), factors.multiplier(),
                          factors.shift(), {}};
        }
        size_t bytes() const { return size_t(kernel.table_bytes(constants.channels)); }

        LayerNormConstants constants;
        Factors factors;
        const IntLayerNormKernel& kernel;
        LayerNormParameters parameters;
    };

    const IntLayerNormKernel& kernel_;
    float scale_, weight_scale_, bias_scale_, out_scale_, wide_scale_, epsilon_;
    Buffer table_;  // made once where all but x is constant
    bool vectors_ = false;
};

}  // namespace

std::unique_ptr<Kernel> create_int_layer_norm(const Node& node) { return std::make_unique<IntLayerNorm>(node); }

}  // namespace intaglio::ort
