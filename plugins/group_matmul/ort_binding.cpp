#include <algorithm>

#include "plugins/group_matmul/kernel.h"
#include "plugins/ort/operators.h"
#include "plugins/ort/real.h"

namespace intaglio::ort {
namespace {

class GroupMatMul final : public Kernel {
public:
    explicit GroupMatMul(const Node& node)
        : kernel_(group_matmul_kernel(node.isa())),
          bits_(node.integer("bits")),
          depth_(node.integer("K")),
          group_size_(node.integer("group_size")),
          activation_bits_(node.integer("activation_bits", 32)),
          has_zero_points_(node.input_count() > 3) {
        if (bits_ != 2 && bits_ != 3 && bits_ != 4 && bits_ != 8) {
            throw Error("bits: " + std::to_string(bits_) + ", expected 2, 3, 4 or 8");
        }
        if (depth_ < 0 || depth_ % 32 != 0) throw Error("K: " + std::to_string(depth_) + ", expected a multiple of 32");
        if (group_size_ < 32 || group_size_ % 32 != 0 || depth_ % group_size_ != 0) {
            throw Error("group_size: " + std::to_string(group_size_) + ", expected a multiple of 32 that divides K=" +
                        std::to_string(depth_));
        }
        if (activation_bits_ != 16 && activation_bits_ != 32) {
            throw Error("activation_bits: " + std::to_string(activation_bits_) + ", expected 16 or 32");
        }
        const Tensor packed = node.constant(1), scales = node.constant(2);
        const Tensor zero_points = has_zero_points_ ? node.constant(3) : Tensor{};
        if (packed && scales && (zero_points || !has_zero_points_)) weight_ = pack(packed, scales, zero_points);
    }

    // x [..., K] float32 or float16, packed [N, K·bits/32] int32, scales [N, K/group_size] the same, optional zero_points uint8 of
    // the same shape -> y [..., N] as x
    void compute(const Context& context) const override {
        const Tensor x = context.input(0);
        const bool ready = bool(weight_.buffer);
        const Weight here = ready ? Weight{}
                                  : pack(context.input(1), context.input(2), has_zero_points_ ? context.input(3) : Tensor{});
        const Weight& weight = ready ? weight_ : here;
        const GroupFormat& format = weight.format;
        if (x.shape.rank() < 1 || x.shape.axis(-1) != depth_) {
            throw Error("x: shape " + x.shape.text() + ", expected [..., " + std::to_string(depth_) + "]");
        }
        Shape shape = x.shape;
        shape.set_axis(-1, format.rows);
        const Tensor output = context.output(0, shape);
        check_like(output, x);
        const int64_t count = shape.rows();
        if (count == 0 || format.rows == 0) return;
        const RealInput values(x);
        const RealOutput y(output);
        const Scratch packed_x(size_t(kernel_.x_bytes(format, count)));
        const int64_t x_grain = std::max<int64_t>((32 << 10) / std::max<int64_t>(depth_, 1), 1);
        context.parallel_for(count, x_grain, [&](int64_t begin, int64_t end) {
            kernel_.pack_x(format, values.data(), count, begin, end, packed_x.as<void>());
        });
        const int64_t tiles = (format.rows + GroupMatMulKernel::TILE - 1) / GroupMatMulKernel::TILE;
        context.parallel_for(tiles, 1, [&](int64_t begin, int64_t end) {
            kernel_.run(format, packed_x.as<void>(), count, weight.buffer.as<void>(), y.data(), begin, end);
        });
        y.finish();
    }

private:
    struct Weight {
        GroupFormat format;
        Buffer buffer;
    };

    Weight pack(const Tensor& packed, const Tensor& scales, const Tensor& zero_points) const {
        const int64_t words = depth_ * bits_ / 32;
        if (packed.shape.rank() != 2 || packed.shape.axis(1) != words) {
            throw Error("packed: shape " + packed.shape.text() + ", expected [N, " + std::to_string(words) + "]");
        }
        const int64_t rows = packed.shape.axis(0);
        const Shape expected{rows, depth_ / group_size_};
        if (scales.shape != expected) {
            throw Error("scales: shape " + scales.shape.text() + ", expected " + expected.text());
        }
        if (zero_points && zero_points.shape != expected) {
            throw Error("zero_points: shape " + zero_points.shape.text() + ", expected " + expected.text());
        }
        const GroupFormat format = {int32_t(bits_), kernel_.planes(int32_t(activation_bits_)), depth_, group_size_, rows};
        Weight weight = {format, Buffer(size_t(std::max<int64_t>(kernel_.weight_bytes(format), 64)))};
        const int64_t tiles = (rows + GroupMatMulKernel::TILE - 1) / GroupMatMulKernel::TILE;
        const RealInput factors(scales);
        kernel_.pack_weight(format, packed.as<int32_t>(), factors.data(),
                            zero_points ? zero_points.as<uint8_t>() : nullptr, 0, tiles, weight.buffer.as<void>());
        return weight;
    }

    const GroupMatMulKernel& kernel_;
    int64_t bits_, depth_, group_size_, activation_bits_;
    bool has_zero_points_;
    Weight weight_{};  // where the weight is a constant of the graph
};

}  // namespace

std::unique_ptr<Kernel> create_group_matmul(const Node& node) { return std::make_unique<GroupMatMul>(node); }

}  // namespace intaglio::ort
