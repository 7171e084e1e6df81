// A low-rank change of a product: rows are shrunk to `rank` numbers each, and these expanded again.
//
// Both matrices have a row for each of the rank, which is read once for up to LOW_RANK_TOKENS rows of x. With one row
// reading the matrices takes all the time, so the next rows are asked for while some are multiplied.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

constexpr int LOW_RANK_TOKENS = 4;  // that are multiplied at once
constexpr int LOW_RANK_ROWS = 4;    // of a matrix that are read at once

struct LowRankMatrix {
    const void* numbers;  // [rank, width], of float32 or, if `halves`, of float16
    int64_t rank, width;
    bool halves;
};

struct LowRankMatMulKernel {
    // hidden[t][r] = scale[t]·Σ x[t][k]·first[r][k] for r in begin..end-1 and `count` <= LOW_RANK_TOKENS tokens.
    void (*shrink)(const LowRankMatrix& first, int64_t begin, int64_t end, const float* const* x, const float* scale,
                   int64_t count, float* const* hidden);
    // sum[t][n] = y[t][n] + Σ hidden[t][r]·second[r][n] for n in begin..end-1; y[t] and sum[t] may be the same.
    void (*expand)(const LowRankMatrix& second, int64_t begin, int64_t end, const float* const* hidden,
                   const float* const* y, int64_t count, float* const* sum);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(LowRankMatMulKernel, low_rank_matmul_kernel)
