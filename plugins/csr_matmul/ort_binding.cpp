#include <algorithm>
#include <vector>

#include "plugins/csr_matmul/kernel.h"
#include "plugins/ort/operators.h"
#include "plugins/ort/real.h"

namespace intaglio::ort {
namespace {

// A matrix with the places where its pieces begin; columns in 16 bits where they fit, as reading them is what counts.
class Matrix {
public:
    Matrix(const Tensor& values, const Tensor& columns, const Tensor& row_offsets) {
        if (values.shape.rank() != 1 || columns.shape != values.shape || row_offsets.shape.rank() != 1 ||
            row_offsets.shape.axis(0) < 1) {
            throw Error("values " + values.shape.text() + ", columns " + columns.shape.text() + ", row_offsets " +
                        row_offsets.shape.text() + ": expected [nnz], [nnz], [N+1]");
        }
        const int64_t count = values.shape.axis(0), rows = row_offsets.shape.axis(0) - 1;
        const int32_t* const offsets = row_offsets.as<int32_t>();
        if (offsets[0] != 0 || offsets[rows] != count || !std::is_sorted(offsets, offsets + rows + 1)) {
            throw Error("row_offsets: do not ascend from 0 to the " + std::to_string(count) + " values");
        }
        const int32_t* const given = columns.as<int32_t>();
        for (int64_t i = 0; i < count; ++i) {
            if (given[i] < 0) throw Error("columns: " + std::to_string(given[i]) + ", expected 0 or more");
            widest_ = std::max<int64_t>(widest_, given[i]);
        }
        const RealInput numbers(values);
        values_.assign(numbers.data(), numbers.data() + count);
        offsets_.assign(offsets, offsets + rows + 1);
        if (widest_ < 1 << 16) {
            narrow_.assign(given, given + count);
        } else {
            wide_.assign(given, given + count);
        }
        const int64_t pieces = std::max<int64_t>((count + CSR_PIECE - 1) / CSR_PIECE, 1);
        for (int64_t piece = 0; piece < pieces; ++piece) {
            const auto begin = std::lower_bound(offsets_.begin(), offsets_.end() - 1, int32_t(piece * CSR_PIECE));
            first_rows_.push_back(int32_t(begin - offsets_.begin()));
        }
        first_rows_.push_back(int32_t(rows));
    }

    int64_t pieces() const { return int64_t(first_rows_.size()) - 1; }
    int64_t rows() const { return int64_t(offsets_.size()) - 1; }
    int64_t widest() const { return widest_; }
    // The row that what piece `piece` has in its head belongs to, or -1.
    int64_t head_row(int64_t piece) const {
        const int64_t row = first_rows_[size_t(piece)] - 1;
        return row >= 0 && offsets_[size_t(row) + 1] > piece * CSR_PIECE ? row : -1;
    }
    CsrMatrix view() const {
        return {values_.data(), wide_.empty() ? narrow_.data() : nullptr, wide_.data(), offsets_.data(),
                first_rows_.data(), rows(), int64_t(values_.size())};
    }

private:
    std::vector<float> values_;
    std::vector<uint16_t> narrow_;
    std::vector<int32_t> wide_, offsets_, first_rows_;
    int64_t widest_ = -1;
};

class CsrMatMul final : public Kernel {
public:
    explicit CsrMatMul(const Node& node) : kernel_(csr_matmul_kernel(node.isa())) {
        const Tensor values = node.constant(1), columns = node.constant(2), row_offsets = node.constant(3);
        if (values && columns && row_offsets) matrix_ = std::make_unique<Matrix>(values, columns, row_offsets);
    }

    // x [..., K], values [nnz], columns [nnz] int32, row_offsets [N+1] int32, y [..., N] -> sum [..., N] as y; float32 or float16
    void compute(const Context& context) const override {
        const Tensor x = context.input(0), y = context.input(4);
        std::unique_ptr<Matrix> here;
        if (!matrix_) here = std::make_unique<Matrix>(context.input(1), context.input(2), context.input(3));
        const Matrix& matrix = matrix_ ? *matrix_ : *here;
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
        if (count == 1) {
            one(context, matrix, values.data(), addend.data(), sum.data());
        } else {
            several(context, matrix, values.data(), count, x.shape.axis(-1), addend.data(), sum.data());
        }
        sum.finish();
    }

private:
    void one(const Context& context, const Matrix& matrix, const float* x, const float* y, float* sum) const {
        const CsrMatrix view = matrix.view();
        const Scratch scratch(size_t(matrix.pieces()) * sizeof(float));
        float* const heads = scratch.as<float>();
        context.parallel_for(matrix.pieces(), 2, [&](int64_t begin, int64_t end) {
            for (int64_t piece = begin; piece < end; ++piece) kernel_.one(view, piece, x, y, sum, heads + piece);
        });
        for (int64_t piece = 1; piece < matrix.pieces(); ++piece) {
            if (const int64_t row = matrix.head_row(piece); row >= 0) sum[row] += heads[piece];
        }
    }

    void several(const Context& context, const Matrix& matrix, const float* x, int64_t count, int64_t depth,
                 const float* y, float* sum) const {
        constexpr int64_t TOKENS = CSR_TOKENS;
        const CsrMatrix view = matrix.view();
        const int64_t pieces = matrix.pieces(), blocks = (count + TOKENS - 1) / TOKENS;
        const Scratch turned(size_t(blocks * depth * TOKENS) * sizeof(float));
        float* const columns = turned.as<float>();  // [blocks][K][16]
        context.parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
            for (int64_t block = begin; block < end; ++block) {
                float* const target = columns + block * depth * TOKENS;
                for (int64_t t = 0; t < TOKENS; ++t) {
                    const int64_t token = block * TOKENS + t;
                    for (int64_t k = 0; k < depth; ++k) {
                        target[k * TOKENS + t] = token < count ? x[token * depth + k] : 0;
                    }
                }
            }
        });
        const Scratch scratch(size_t(blocks * pieces * TOKENS) * sizeof(float));
        float* const heads = scratch.as<float>();
        context.parallel_for(blocks * pieces, 1, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
                const int64_t block = task / pieces, piece = task % pieces, first = block * TOKENS;
                kernel_.several(view, piece, columns + block * depth * TOKENS, std::min(TOKENS, count - first),
                                y + first * view.rows, sum + first * view.rows, heads + task * TOKENS);
            }
        });
        for (int64_t task = 0; task < blocks * pieces; ++task) {
            const int64_t first = task / pieces * TOKENS, row = matrix.head_row(task % pieces);
            if (row < 0 || task % pieces == 0) continue;
            for (int64_t t = 0; t < std::min(TOKENS, count - first); ++t) {
                sum[(first + t) * view.rows + row] += heads[task * TOKENS + t];
            }
        }
    }

    const CsrMatMulKernel& kernel_;
    std::unique_ptr<Matrix> matrix_;  // where it is a constant of the graph
};

}  // namespace

std::unique_ptr<Kernel> create_csr_matmul(const Node& node) { return std::make_unique<CsrMatMul>(node); }

}  // namespace intaglio::ort
