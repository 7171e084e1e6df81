#include <optional>

#include "plugins/integer_constants.h"
#include "plugins/ort/factors.h"
#include "plugins/ort/operator.h"
#include "plugins/ort/product.h"

namespace intaglio::ort {
namespace {

class IntLinear final : public Kernel {
public:
    explicit IntLinear(const Node& node)
        : kernel_(int_linear_kernel(node.isa())),
          bits_(int(node.integer("bits"))),
          gelu_(node.text("activation") == "gelu"),
          constants_(gelu_ ? inner_constants(node.real("out_scale")) : GeluConstants{}),
          out_zero_point_(zero_point(node, "out_zero_point")) {
        if (gelu_ && bits_ != 8) throw Error("activation: 'gelu' with bits=" + std::to_string(bits_) + ", expected bits=8");
        if (out_zero_point_ != 0 && !gelu_) throw Error("out_zero_point without an activation, expected 0");
        const Tensor weight = node.constant(1), bias = node.constant(2);
        if (!weight || !bias) return;
        check_weight(weight, bias);
        packed_ = Buffer(size_t(kernel_.weight_bytes(weight.shape.axis(0), weight.shape.axis(1))));
        pack(weight, bias, packed_.as<void>());
    }

    // x [..., K] int8, weight [K, N] int8, bias [N] int32, optional multiplier, shift, out_multiplier, out_shift
    // [N|1] int32, gate [..., N] int32, gate_multiplier, gate_shift [N|1] int32, residual [..., N] int32, multiple
    // [N|1] int32 -> y [..., N] int8|int32
    void compute(const Context& context) const override {
        const Tensor x = context.input(0), weight = context.input(1), bias = context.input(2);
        const Tensor multiplier = context.input(3), shift = context.input(4);
        check_weight(weight, bias);
        check_factors(bits_, multiplier, shift);
        const int64_t depth = weight.shape.axis(0), columns = weight.shape.axis(1);
        if (x.shape.rank() < 1 || x.shape.axis(-1) != depth) {
            throw Error("x: shape " + x.shape.text() + ", expected [..., " + std::to_string(depth) + "] for weight " +
                        weight.shape.text());
        }
        Shape shape = x.shape;
        shape.set_axis(-1, columns);
        const int64_t rows = shape.rows();
        const Tensor gate = context.input(7), residual = context.input(10), multiple = context.input(11);
        check_gate(gate, context.input(8), context.input(9), shape);
        check_residual(residual, multiple, shape);
        void* const y = context.output(0, shape).data;
        if (shape.elements() == 0) return;

        const Factors factors(multiplier, shift, columns, {0, 0});
        const Dyadic otherwise = {constants_.out_multiplier, constants_.out_shift};
        const Factors out(context.input(5), context.input(6), columns, otherwise);
        Epilogue epilogue = {bits_, factors.multiplier(), factors.shift(), gelu_ ? &constants_ : nullptr,
                             out.multiplier(), out.shift(), out_zero_point_};
        std::optional<Factors> gated;
        if (gate) {
            gated.emplace(context.input(8), context.input(9), columns, Dyadic{0, 0});
            epilogue.gate = gate.as<int32_t>();
            epilogue.gate_multiplier = gated->multiplier();
            epilogue.gate_shift = gated->shift();
        }
        std::optional<PerChannelValues> multiples;
        if (residual) {
            multiples.emplace(multiple, columns);
            epilogue.residual = residual.as<int32_t>();
            epilogue.multiple = multiples->data();
        }
        const size_t x_bytes = size_t(kernel_.x_bytes(rows, depth));
        const Scratch packed_x(x_bytes);
        const Scratch packed_here(packed_ ? 0 : size_t(kernel_.weight_bytes(depth, columns)));
        if (!packed_) pack(weight, bias, packed_here.as<void>());
        const void* const packed = packed_ ? packed_.as<void>() : packed_here.as<void>();
        if (x_bytes > 0) {
            context.parallel_for(rows, packing_grain(depth), [&](int64_t begin, int64_t end) {
                kernel_.pack_x(x.as<int8_t>(), begin, end, depth, packed_x.as<void>());
            });
        }
        const void* const left = x_bytes > 0 ? packed_x.as<void>() : x.as<int8_t>();
        const int64_t tasks = kernel_.tasks(rows, depth, columns);
        context.parallel_for(tasks, product_grain(rows, depth, columns, tasks), [&](int64_t begin, int64_t end) {
            kernel_.run(left, packed, rows, depth, columns, epilogue, y, begin, end);
        });
    }

private:
    static GeluConstants inner_constants(float out_scale) {
        return gelu_constants(gelu_inner_scale(out_scale), out_scale);
    }

    static void check_weight(const Tensor& weight, const Tensor& bias) {
        if (weight.shape.rank() != 2) throw Error("weight: shape " + weight.shape.text() + ", expected [K, N]");
        const Shape expected{weight.shape.axis(1)};
        if (bias.shape != expected) throw Error("bias: shape " + bias.shape.text() + ", expected " + expected.text());
        check_depth(weight.shape.axis(0));
    }

    void check_gate(const Tensor& gate, const Tensor& multiplier, const Tensor& shift, const Shape& shape) const {
        if (bool(gate) != bool(multiplier) || bool(gate) != bool(shift)) {
            throw Error("gate, gate_multiplier and gate_shift: expected all or none");
        }
        if (!gate) return;
        if (!gelu_) throw Error("gate without an activation, expected activation='gelu'");
        if (out_zero_point_ != 0) throw Error("out_zero_point with a gate, expected 0");
        if (gate.shape != shape) throw Error("gate: shape " + gate.shape.text() + ", expected that of y, " + shape.text());
    }

    void check_residual(const Tensor& residual, const Tensor& multiple, const Shape& shape) const {
        if (bool(residual) != bool(multiple)) throw Error("residual and multiple: expected both or none");
        if (!residual) return;
        if (gelu_ || bits_ != 16) {
            throw Error("residual with bits=" + std::to_string(bits_) + ", expected 16 and no activation");
        }
        if (residual.shape != shape) {
            throw Error("residual: shape " + residual.shape.text() + ", expected that of y, " + shape.text());
        }
        check_per_channel("multiple", multiple, shape.axis(-1));
    }

    void pack(const Tensor& weight, const Tensor& bias, void* packed) const {
        constexpr int64_t MAXIMUM = 1 << 30;  // the products of the longest rows leave so much of 32 bits
        const int64_t depth = weight.shape.axis(0), columns = weight.shape.axis(1);
        const int32_t* values = bias.as<int32_t>();
        for (int64_t i = 0; i < columns; ++i) {
            if (values[i] < -MAXIMUM || values[i] > MAXIMUM) {
                throw Error("bias: " + std::to_string(values[i]) + ", expected -2^30 to 2^30");
            }
        }
        kernel_.pack_weight(weight.as<int8_t>(), bias.as<int32_t>(), depth, columns, packed);
    }

    const IntLinearKernel& kernel_;
    int bits_;
    bool gelu_;
    GeluConstants constants_;
    int out_zero_point_;
    Buffer packed_;  // the weight and the bias where both are constants of the graph
};

}  // namespace

std::unique_ptr<Kernel> create_int_linear(const Node& node) { return std::make_unique<IntLinear>(node); }

}  // namespace intaglio::ort
