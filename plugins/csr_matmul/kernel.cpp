#include "plugins/csr_matmul/kernel.h"

#include "plugins/simd_float.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// --- one token ------------------------------------------------------------------------------------------------------

// The sums of a slice's chunks.
template <typename Column>
static void dots(const CsrSlice& slice, const float* values, const Column* columns, const float* x, float* totals) {
    float total[CSR_SLICE] = {};
    int64_t i = slice.first;
    const int common = slice.lengths[CSR_SLICE - 1];
    for (int step = 0; step < common; ++step, i += CSR_SLICE) {
        for (int n = 0; n < CSR_SLICE; ++n) total[n] += values[i + n] * x[columns[i + n]];
    }
    for (int n = 0; n < CSR_SLICE; ++n) {
        for (int step = common; step < slice.lengths[n]; ++step, ++i) total[n] += values[i] * x[columns[i]];
        totals[n] = total[n];
    }
}

template <typename Column>
static void one_token(const CsrMatrix& m, const Column* columns, int64_t begin, int64_t end, const float* x,
                      const float* y, float* sum, float* rest) {
    for (int64_t i = begin; i < end; ++i) {
        const CsrSlice& slice = m.slices[i];
        float totals[CSR_SLICE];
        dots(slice, m.values, columns, x, totals);
        for (int n = 0; n < CSR_SLICE; ++n) {
            const int64_t target = slice.targets[n];
            if (target >= 0) {
                sum[target] = y[target] + totals[n];
            } else {
                rest[-1 - target] = totals[n];
            }
        }
    }
}

static void one(const CsrMatrix& m, int64_t begin, int64_t end, const float* x, const float* y, float* sum,
                float* rest) {
    if (m.columns) return one_token(m, m.columns, begin, end, x, y, sum, rest);
    one_token(m, m.wide_columns, begin, end, x, y, sum, rest);
}

// --- several --------------------------------------------------------------------------------------------------------

constexpr int VECTORS = CSR_TOKENS / FLOATS;

INTAGLIO_FLOAT void add_product(float value, const float* x, F32* sums) {
    for (int v = 0; v < VECTORS; ++v) sums[v] = multiply_add(set_float(value), load_float(x + v * FLOATS), sums[v]);
}

// The sums of a slice's chunks for 16 tokens: totals [chunks][16]
template <typename Column>
static void dots_of_tokens(const CsrSlice& slice, const float* values, const Column* columns, const float* x,
                           float* totals) {
    F32 sums[CSR_SLICE][VECTORS];
    for (int n = 0; n < CSR_SLICE; ++n) {
        for (int v = 0; v < VECTORS; ++v) sums[n][v] = set_float(0);
    }
    int64_t i = slice.first;
    const int common = slice.lengths[CSR_SLICE - 1];
    for (int step = 0; step < common; ++step, i += CSR_SLICE) {
        for (int n = 0; n < CSR_SLICE; ++n) {
            add_product(values[i + n], x + int64_t(columns[i + n]) * CSR_TOKENS, sums[n]);
        }
    }
    for (int n = 0; n < CSR_SLICE; ++n) {
        for (int step = common; step < slice.lengths[n]; ++step, ++i) {
            add_product(values[i], x + int64_t(columns[i]) * CSR_TOKENS, sums[n]);
        }
    }
    __builtin_memcpy(totals, sums, sizeof sums);
}

template <typename Column>
static void several_tokens(const CsrMatrix& m, const Column* columns, int64_t begin, int64_t end, const float* x,
                           int64_t count, const float* y, float* sum, float* rest) {
    for (int64_t i = begin; i < end; ++i) {
        const CsrSlice& slice = m.slices[i];
        float totals[CSR_SLICE][CSR_TOKENS];
        dots_of_tokens(slice, m.values, columns, x, totals[0]);
        for (int n = 0; n < CSR_SLICE; ++n) {
            const int64_t target = slice.targets[n];
            if (target < 0) {
                __builtin_memcpy(rest + (-1 - target) * CSR_TOKENS, totals[n], sizeof totals[n]);
                continue;
            }
            for (int64_t t = 0; t < count; ++t) {
                sum[t * m.rows + target] = y[t * m.rows + target] + totals[n][t];
            }
        }
    }
}

static void several(const CsrMatrix& m, int64_t begin, int64_t end, const float* x, int64_t count, const float* y,
                    float* sum, float* rest) {
    if (m.columns) return several_tokens(m, m.columns, begin, end, x, count, y, sum, rest);
    several_tokens(m, m.wide_columns, begin, end, x, count, y, sum, rest);
}

}  // namespace

const CsrMatMulKernel csr_matmul_kernel = {one, several};

}  // namespace intaglio::INTAGLIO_ISA
