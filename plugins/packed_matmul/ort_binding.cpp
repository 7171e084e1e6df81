#include <algorithm>
#include <string>

#include "plugins/ort/operator.h"
#include "plugins/ort/packed_weight.h"
#include "plugins/packed_matmul/kernel.h"

namespace intaglio::ort {
namespace {

constexpr int64_t PRODUCTS = 1 << 16;   // of a piece of parallel work, some microseconds
constexpr int64_t READ = 6;             // rows whose products take as long as reading a weight from memory
constexpr int64_t ROWS = 96;            // of a block whose numbers of some depth stay in the second-level cache
constexpr int64_t STRIP = 64;           // rows of a weight that are packed together

class Panels {
public:
    Panels(const PackedMatMulKernel& kernel, const Tensor& weight, bool transposed) : type_(type_of(weight)) {
        if (weight.shape.rank() != 2) throw Error("weight: shape " + weight.shape.text() + ", expected two axes");
        depth_ = weight.shape.axis(transposed ? 1 : 0);
        columns_ = weight.shape.axis(transposed ? 0 : 1);
        count_ = (columns_ + kernel.panel - 1) / kernel.panel;
        const int64_t bytes = checked_product(checked_product(count_ * kernel.panel, depth_), bytes_of(type_));
        if (weight.shape.elements() == 0) return;
        packed_ = Buffer(size_t(bytes));
        const int64_t rows = weight.shape.axis(0), tile = transposed ? kernel.panel : STRIP;
        pack_in_pieces(weight, bytes_of(type_), tile, [&](int64_t begin, int64_t end) {
            const int64_t first = begin * tile, last = std::min(end * tile, rows);
            if (transposed) kernel.pack_transposed(type_, weight.data, first, last, depth_, packed_.as<void>());
            else kernel.pack(type_, weight.data, first, last, depth_, columns_, packed_.as<void>());
        });
    }

    WeightType type() const { return type_; }
    int64_t depth() const { return depth_; }
    int64_t columns() const { return columns_; }
    int64_t count() const { return count_; }
    const void* data() const { return packed_.as<void>(); }

private:
    static WeightType type_of(const Tensor& weight) {
        switch (weight.dtype) {
            case DType::float32: return WeightType::float32;
            case DType::float16: return WeightType::float16;
            case DType::bfloat16: return WeightType::bfloat16;
            default: throw Error(std::string("weight: ") + dtype_name(weight.dtype) + ", expected float32, float16 or bfloat16");
        }
    }

    WeightType type_;
    int64_t depth_ = 0, columns_ = 0, count_ = 0;
    Buffer packed_;
};

class PackedMatMul final : public Kernel {
public:
    explicit PackedMatMul(const Node& node)
        : kernel_(packed_matmul_kernel(node.isa())), transposed_(node.integer("transposed") != 0) {
        if (const Tensor weight = node.constant(1)) panels_ = std::make_unique<Panels>(kernel_, weight, transposed_);
    }

    // x [..., K] float32, weight [K, N], or transposed, of float32, float16 or bfloat16 -> y [..., N] float32
    void compute(const Context& context) const override {
        const Tensor x = context.input(0);
        std::unique_ptr<Panels> here;
        if (!panels_) here = std::make_unique<Panels>(kernel_, context.input(1), transposed_);
        const Panels& panels = panels_ ? *panels_ : *here;
        if (x.shape.rank() < 1 || x.shape.axis(-1) != panels.depth()) {
            throw Error("x: shape " + x.shape.text() + ", expected [..., " + std::to_string(panels.depth()) + "]");
        }
        Shape shape = x.shape;
        shape.set_axis(-1, panels.columns());
        const Tensor output = context.output(0, shape);
        if (shape.elements() == 0) return;
        const float* const values = x.as<float>();
        float* const y = output.as_mutable<float>();
        if (panels.depth() == 0) {
            std::fill(y, y + shape.elements(), 0.0f);
            return;
        }
        const int64_t rows = shape.rows(), blocks = (rows + ROWS - 1) / ROWS, count = panels.count();
        const int64_t of_panel = (std::min(rows, ROWS) + READ) * panels.depth() * kernel_.panel;
        context.parallel_for(blocks * count, PRODUCTS / of_panel + 1, [&](int64_t begin, int64_t end) {
            while (begin < end) {
                const int64_t first = begin / count * ROWS, panel = begin % count, last = std::min(panel + end - begin, count);
                kernel_.multiply(panels.type(), panels.data(), panel, last, values + first * panels.depth(),
                                 std::min(ROWS, rows - first), panels.depth(), panels.columns(), y + first * panels.columns());
                begin += last - panel;
            }
        });
    }

private:
    const PackedMatMulKernel& kernel_;
    bool transposed_;
    std::unique_ptr<Panels> panels_;  // where the weight is a constant of the graph
};

}  // namespace

std::unique_ptr<Kernel> create_packed_matmul(const Node& node) { return std::make_unique<PackedMatMul>(node); }

}  // namespace intaglio::ort
