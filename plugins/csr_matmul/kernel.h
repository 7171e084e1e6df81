// The product with a sparse matrix in compressed rows, added to what there is: y + x·Sᵀ.
//
// The work is cut into pieces of equally many non-zeros, wherever rows end (SqueezeLLM's balanced kernel, appendix B),
// so that rows that hold most of the values delay no thread. A row belongs to the piece that it begins in, which writes
// its y; what the pieces after it find of it goes to their `head`, to be added in the pieces' order: the pieces do not
// depend on the number of threads, nor do the sums.
#pragma once

#include <cstdint>

#include "plugins/isa.h"

namespace intaglio {

constexpr int64_t CSR_PIECE = 2048;  // non-zeros: some microseconds of work for one token
constexpr int CSR_TOKENS = 16;       // of x that are multiplied at once where there are several

struct CsrMatrix {
    const float* values;         // [nonzeros]
    const uint16_t* columns;     // [nonzeros], or null where there are more columns than 2^16
    const int32_t* wide_columns; // [nonzeros], where `columns` is null
    const int32_t* row_offsets;  // [rows + 1]
    const int32_t* first_rows;   // [pieces + 1]: the first row that begins in each piece, and the number of rows
    int64_t rows, nonzeros;
};

struct CsrMatMulKernel {
    // One piece for one token. x: [K]; y, sum: [rows]; head: one number
    void (*one)(const CsrMatrix& matrix, int64_t piece, const float* x, const float* y, float* sum, float* head);
    // One piece for `count` <= 16 tokens. x: [K][16], zeros beyond count; y, sum: [count, rows]; head: [16]
    void (*several)(const CsrMatrix& matrix, int64_t piece, const float* x, int64_t count, const float* y, float* sum,
                    float* head);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(CsrMatMulKernel, csr_matmul_kernel)
