#include <algorithm>

#include "plugins/int_add/kernel.h"
#include "plugins/ort/broadcast.h"
#include "plugins/ort/factors.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {
namespace {

constexpr int64_t BLOCK = 16384;  // elements of a piece of parallel work, about 3 microseconds

PerChannelValues multipliers(const char* name, const Tensor& tensor, int64_t channels) {
    check_per_channel(name, tensor, channels);
    check_term_multiplier(name, tensor);
    return PerChannelValues(tensor, channels);
}

// x or y: its elements and where its rows lie in the sum's shape.
class Term {
public:
    Term(const char* name, const Tensor& tensor, const Shape& shape)
        : rows(name, tensor.shape, shape),
          is_int8(tensor.dtype == DType::int8),
          data_(is_int8 ? static_cast<const void*>(tensor.as<int8_t>()) : tensor.as<int32_t>()) {}

    // From `row` on, for no more rows than `rows.run()` says.
    AddOperand at(int64_t row) const {
        const char* start = static_cast<const char*>(data_) + rows.start(row) * (is_int8 ? 1 : 4);
        return {start, rows.stride(), rows.step()};
    }

    BroadcastRows rows;
    bool is_int8;

private:
    const void* data_;
};

class IntAdd final : public Kernel {
public:
    explicit IntAdd(const Node& node) : kernel_(int_add_kernel(node.isa())), bits_(int(node.integer("bits"))) {}

    // x [..., C] int8|int32, y [..., C] int8|int32, x_multiplier [C|1] int32, y_multiplier [C|1] int32, shift [C|1] int32
    // -> sum, of the shape that x and y broadcast to
    void compute(const Context& context) const override {
        const Tensor x_input = context.input(0), y_input = context.input(1), shift_input = context.input(4);
        const Shape shape = broadcast(x_input.shape, y_input.shape);
        const int64_t channels = shape.rank() > 0 ? shape.axis(-1) : 1;
        const Term x("x", x_input, shape), y("y", y_input, shape);
        char* const sum = static_cast<char*>(context.output(0, shape).data);
        if (shape.elements() == 0) return;  // before the factors: without elements there may be any number of channels
        const PerChannelValues x_multiplier = multipliers("x_multiplier", context.input(2), channels);
        const PerChannelValues y_multiplier = multipliers("y_multiplier", context.input(3), channels);
        check_per_channel("shift", shift_input, channels);
        check_shifts(shift_input);
        const PerChannelValues shift(shift_input, channels);
        const AddFactors factors = {x_multiplier.data(), y_multiplier.data(), shift.data()};
        const IntAddKernel::Add add = kernel_.add[x.is_int8][y.is_int8][bits_ == 8];
        const int64_t run = std::min(x.rows.run(), y.rows.run()), row_bytes = channels * (bits_ == 8 ? 1 : 4);
        const int64_t grain = std::max<int64_t>(BLOCK / std::max<int64_t>(channels, 1), 1);
        context.parallel_for(shape.rows(), grain, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end;) {
                const int64_t last = std::min(end, (row / run + 1) * run);
                add(x.at(row), y.at(row), last - row, channels, factors, sum + row * row_bytes);
                row = last;
            }
        });
    }

private:
    const IntAddKernel& kernel_;
    int bits_;
};

}  // namespace

std::unique_ptr<Kernel> create_int_add(const Node& node) { return std::make_unique<IntAdd>(node); }

}  // namespace intaglio::ort
