#include "plugins/csr_matmul/sparse_rows.h"
#include "plugins/ort/real.h"

namespace intaglio::ort {
namespace {

class CsrMatMul final : public Kernel {
public:
    explicit CsrMatMul(const Node& node) : kernel_(csr_matmul_kernel(node.isa())) {
        const Tensor values = node.constant(1), columns = node.constant(2), row_offsets = node.constant(3);
        if (values && columns && row_offsets) matrix_ = std::make_unique<SparseRows>(values, columns, row_offsets);
    }

    // x [..., K], values [nnz], columns [nnz] int32, row_offsets [N+1] int32, y [..., N] -> sum [..., N] as y; float32 or float16
    void compute(const Context& context) const override {
        const Tensor x = context.input(0), y = context.input(4);
        std::unique_ptr<SparseRows> here;
        if (!matrix_) here = std::make_unique<SparseRows>(context.input(1), context.input(2), context.input(3));
        const SparseRows& matrix = matrix_ ? *matrix_ : *here;
        if (x.shape.rank() < 1 || x.shape.axis(-1) <= matrix.widest()) {
            throw Error("x: shape " + x.shape.text() + ", expected more channels than column " +
                        std::to_string(matrix.widest()));
        }
        Shape shape = x.shape;
        shape.set_axis(-1, matrix.rows());
        if (y.shape != shape) throw Error("y: shape " + y.shape.text() + ", expected " + shape.text());
        const Tensor output = context.output(0, shape);
        check_like(output, y);
        const int64_t count = shape.rows();
        if (count == 0 || matrix.rows() == 0) return;
        const RealInput values(x), addend(y);
        const RealOutput sum(output);
        add_sparse_product(context, kernel_, matrix, values.data(), count, x.shape.axis(-1), addend.data(), sum.data());
        sum.finish();
    }

private:
    const CsrMatMulKernel& kernel_;
    std::unique_ptr<SparseRows> matrix_;  // where it is a constant of the graph
};

}  // namespace

std::unique_ptr<Kernel> create_csr_matmul(const Node& node) { return std::make_unique<CsrMatMul>(node); }

}  // namespace intaglio::ort
