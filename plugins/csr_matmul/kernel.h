// The product with a sparse matrix in compressed rows, added to y: y + x·Sᵀ.
//
// Rows are cut into chunks of at most CSR_CHUNK values, and the chunks ordered by their lengths, the longest first. Eight
// of them, side by side, are a slice: eight sums at once, in loops whose lengths repeat, where rows as they come end at
// another length each (18 ± 4 values in a row of 4096 at 0.45 %) and cost a mispredicted branch. What a thread is given
// is slices of equally many values, so that rows that hold most of them delay no thread (SqueezeLLM's balanced kernel,
// appendix B), and no sum depends on the number of threads.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

constexpr int CSR_SLICE = 8;    // chunks
constexpr int CSR_CHUNK = 64;   // values
constexpr int CSR_TOKENS = 16;  // of x that are multiplied at once where there are several

struct CsrSlice {
    int32_t first;                // of its values
    uint8_t lengths[CSR_SLICE];   // descending
    // Where a chunk's sum goes: a row, with y added, if it is the row's first chunk; else -1 - place in `rest`.
    int32_t targets[CSR_SLICE];
};

// The values of a slice lie interleaved, eight by eight, as far as its last chunk goes; what is left of the others follows.
struct CsrMatrix {
    const float* values;          // [nonzeros]
    const uint16_t* columns;      // [nonzeros], or null where there are more columns than 2^16
    const int32_t* wide_columns;  // [nonzeros], where `columns` is null
    const CsrSlice* slices;
    int64_t rows;
};

struct CsrMatMulKernel {
    // Slices `begin` to `end` - 1 for one token. x: [K]; y, sum: [rows]; rest: [chunks that are not the first]
    void (*one)(const CsrMatrix& matrix, int64_t begin, int64_t end, const float* x, const float* y, float* sum,
                float* rest);
    // The same for `count` <= 16 tokens. x: [K][16], zeros beyond count; y, sum: [count, rows]; rest: [chunks][16]
    void (*several)(const CsrMatrix& matrix, int64_t begin, int64_t end, const float* x, int64_t count, const float* y,
                    float* sum, float* rest);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(CsrMatMulKernel, csr_matmul_kernel)
