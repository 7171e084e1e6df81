// A sparse matrix for the CPU kernels, and the product with it: for CsrMatMul, and LutMatMul with sparse values.
#pragma once

#include <vector>

#include "plugins/csr_matmul/kernel.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {

// A matrix cut into slices; columns in 16 bits where they fit, as reading them is what counts.
class SparseRows {
public:
    // values [nnz] float32 or float16, columns [nnz] int32, row_offsets [N+1] int32. Throws Error unless the offsets
    // ascend from 0 to nnz, and for a negative column.
    SparseRows(const Tensor& values, const Tensor& columns, const Tensor& row_offsets);

    int64_t pieces() const { return int64_t(pieces_.size()) - 1; }
    // The first slice of a piece; its last one is before the next piece's.
    int64_t begin(int64_t piece) const { return pieces_[size_t(piece)]; }
    int64_t rows() const { return rows_; }
    int64_t widest() const { return widest_; }
    // The rows that the chunks which are not the first belong to, in the order in which they are added.
    const std::vector<int32_t>& rest_rows() const { return rest_rows_; }
    // Chunks that `rest` has room for: those, and the empty ones that fill the last slice up.
    int64_t rest() const { return int64_t(rest_rows_.size()) + CSR_SLICE; }
    CsrMatrix view() const {
        return {values_.data(), wide_.empty() ? narrow_.data() : nullptr, wide_.data(), slices_.data(), rows_};
    }

private:
    struct Chunk {
        int32_t first, length, target;
    };

    // The chunks of all rows, the longest first, as many as whole slices have.
    std::vector<Chunk> cut(const int32_t* offsets);
    void add_slice(const Chunk* chunks, const float* values, const int32_t* columns);

    std::vector<float> values_;
    std::vector<uint16_t> narrow_;
    std::vector<int32_t> wide_, rest_rows_, pieces_ = {0};
    std::vector<CsrSlice> slices_;
    int64_t rows_ = 0, widest_ = -1;
};

// sum = y + x·Sᵀ. x: [count, depth], with more channels than the matrix's widest column; y, sum: [count, rows], which may be
// the same.
void add_sparse_product(const Context& context, const CsrMatMulKernel& kernel, const SparseRows& matrix, const float* x,
                        int64_t count, int64_t depth, const float* y, float* sum);

}  // namespace intaglio::ort
