#include <algorithm>

#include "plugins/group_matmul/kernel.h"
#include "plugins/ort/operator.h"
#include "plugins/ort/packed_weight.h"
#include "plugins/ort/real.h"

namespace intaglio::ort {
namespace {

constexpr int64_t LARGEST_GROUP = 1 << 16;  // the sums of its products, of up to 255·128, have 32 bits

class GroupMatMul final : public Kernel {
public:
    explicit GroupMatMul(const Node& node)
        : kernel_(group_matmul_kernel(node.isa())),
          kind_(node),
          group_size_(node.integer("group_size")),
          has_levels_(node.input_count() == 5),
          has_zero_points_(node.input_count() == 4 || node.input_count() == 6),
          has_minimums_(node.input_count() == 6) {
        const int64_t least = kind_.bits % 2 ? 32 : 16;  // values of K of the largest unit
        if (group_size_ < least || group_size_ > LARGEST_GROUP || group_size_ % least != 0 || kind_.depth % group_size_ != 0) {
            throw Error("group_size: " + std::to_string(group_size_) + ", expected a multiple of " + std::to_string(least) + ", at most " +
                        std::to_string(LARGEST_GROUP) + ", that divides K=" + std::to_string(kind_.depth));
        }
        const Tensor packed = node.constant(1), scales = node.constant(2);
        const Tensor zero_points = has_zero_points_ ? node.constant(3) : Tensor{};
        const Tensor levels = has_levels_ ? node.constant(4) : Tensor{};
        const Tensor minimums = has_minimums_ ? node.constant(5) : Tensor{};
        // A node with minimums may leave out zero points, too: it is packed in each run.
        if (packed && scales && (zero_points || !has_zero_points_) && (levels || !has_levels_) && (minimums || !has_minimums_)) {
            weight_ = pack({packed, scales, zero_points, levels, minimums});
        }
    }

    // x [..., K] float32 or float16, packed [N, K·bits/32] int32, scales [N, K/group_size] the same, optional zero_points uint8 of
    // the same shape or, instead of these, levels [2^bits] float32; optional minimums [K/group_size, N] float32, with no levels
    // -> y [..., N] as x
    void compute(const Context& context) const override {
        const Tensor x = context.input(0);
        if (context.input(4) && (context.input(3) || context.input(5))) {
            throw Error(std::string(context.input(3) ? "zero_points" : "minimums") + ": given beside levels, expected one of both");
        }
        const bool ready = bool(weight_.buffer);
        const Weight here = ready ? Weight{} : pack({context.input(1), context.input(2), context.input(3), context.input(4), context.input(5)});
        const Weight& weight = ready ? weight_ : here;
        const GroupFormat& format = weight.format;
        const Shape shape = kind_.output_shape(x, format.rows);
        const Tensor output = context.output(0, shape);
        check_like(output, x);
        const int64_t count = shape.rows();
        if (count == 0 || format.rows == 0) return;
        const RealInput values(x);
        const RealOutput y(output);
        const Scratch packed_x(size_t(kernel_.x_bytes(format, count)));
        context.parallel_for(count, x_packing_grain(kind_.depth), [&](int64_t begin, int64_t end) {
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

    struct Inputs {
        Tensor packed, scales, zero_points, levels, minimums;
    };

    Weight pack(const Inputs& given) const {
        const Tensor &packed = given.packed, &scales = given.scales, &zero_points = given.zero_points, &levels = given.levels;
        const Tensor& minimums = given.minimums;
        const int64_t rows = kind_.rows(packed), groups = kind_.depth / group_size_;
        const Shape expected{rows, groups}, of_minimums{groups, rows};
        if (scales.shape != expected) {
            throw Error("scales: shape " + scales.shape.text() + ", expected " + expected.text());
        }
        if (zero_points && zero_points.shape != expected) {
            throw Error("zero_points: shape " + zero_points.shape.text() + ", expected " + expected.text());
        }
        if (minimums && minimums.shape != of_minimums) {
            throw Error("minimums: shape " + minimums.shape.text() + ", expected " + of_minimums.text());
        }
        if (levels && kind_.bits != 4 && kind_.bits != 8) {
            throw Error("levels: with bits=" + std::to_string(kind_.bits) + ", expected 4 or 8");
        }
        if (levels && levels.shape != Shape{int64_t(1) << kind_.bits}) {
            throw Error("levels: shape " + levels.shape.text() + ", expected " + Shape{int64_t(1) << kind_.bits}.text());
        }
        const float* const table = levels ? levels.as<float>() : nullptr;
        const int32_t bits = int32_t(kind_.bits), planes = kernel_.planes(int32_t(kind_.activation_bits), bits, table);
        const int32_t zero_point = levels ? MIDDLE : zero_point_of_all(zero_points);
        const int32_t computed =
            levels && bits == 8 ? kernel_.computed(static_cast<const uint8_t*>(packed.data), rows * kind_.depth, table) : 0;
        const int64_t size = kernel_.group_size(group_size_, planes, bits, bool(levels));
        const RealInput factors(scales);
        GroupFormat format = {};
        format.bits = bits;
        format.planes = planes;
        format.depth = kind_.depth;
        format.group_size = size;
        format.parts = int32_t(group_size_ / size);
        format.rows = rows;
        format.zero_point = zero_point;
        format.has_levels = bool(levels);
        format.computed = computed;
        format.has_minimums = bool(minimums);
        const float* const lowest = minimums ? minimums.as<float>() : nullptr;
        if (kind_.depth == 0) return {format, Buffer(64)};  // rows without elements may be any number
        if (!levels) format.scales = kernel_.factor_form(factors.data(), groups, 1, rows, groups, group_size_);
        if (minimums) format.minimums = kernel_.factor_form(lowest, 1, rows, rows, groups, group_size_);
        Weight weight = {format, Buffer(size_t(std::max<int64_t>(kernel_.weight_bytes(format), 64)))};
        const uint8_t* const zeros = zero_points ? zero_points.as<uint8_t>() : nullptr;
        pack_in_pieces(packed, sizeof(int32_t), GroupMatMulKernel::TILE, [&](int64_t begin, int64_t end) {
            kernel_.pack_weight(format, packed.as<int32_t>(), factors.data(), zeros, lowest, table, begin, end, weight.buffer.as<void>());
        });
        release_file_pages(scales.data, scales.shape.elements() * (scales.dtype == DType::float16 ? 2 : 4));
        if (minimums) release_file_pages(minimums.data, minimums.shape.elements() * int64_t(sizeof(float)));
        return weight;
    }

    int32_t zero_point_of_all(const Tensor& zero_points) const {
        if (!zero_points) return 1 << (kind_.bits - 1);
        const uint8_t* const first = zero_points.as<uint8_t>();
        const uint8_t* const last = first + zero_points.shape.elements();
        return first != last && std::all_of(first, last, [&](uint8_t each) { return each == *first; }) ? *first : NO_ZERO_POINT;
    }

    const GroupMatMulKernel& kernel_;
    PackedWeight kind_;
    int64_t group_size_;
    bool has_levels_, has_zero_points_, has_minimums_;
    Weight weight_{};  // where the weight is a constant of the graph
};

}  // namespace

std::unique_ptr<Kernel> create_group_matmul(const Node& node) { return std::make_unique<GroupMatMul>(node); }

bool select_group_matmul(Isa isa, const MicroKernelWish& wish) { return group_matmul_kernel(isa).select(wish); }

}  // namespace intaglio::ort
