#include "plugins/csr_matmul/kernel.h"

#include "plugins/cpu/simd_float.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// --- one token ------------------------------------------------------------------------------------------------------

using Four = float __attribute__((vector_size(16)));

// Numbers that are asked for into the second-level cache before they are read: a matrix of some 10^5 is at its end before
// the processor's own prefetching has recognised two streams, and the first-level cache has room for too few requests.
constexpr int64_t AHEAD = 1024;
constexpr int SECOND_LEVEL = 2;

// The sums of a slice's chunks.
template <typename Column>
INTAGLIO_FLOAT void dots(const CsrSlice& slice, const float* values, const Column* columns, const float* x,
                         float* totals) {
    Four total[CSR_SLICE / 4] = {};
    int64_t i = slice.first;
    const int common = slice.lengths[CSR_SLICE - 1];
    for (int step = 0; step < common; ++step) {
        __builtin_prefetch(values + i + AHEAD, 0, SECOND_LEVEL);
        __builtin_prefetch(columns + i + AHEAD, 0, SECOND_LEVEL);
        for (int n = 0; n < CSR_SLICE / 4; ++n, i += 4) {
            Four four;
            __builtin_memcpy(&four, values + i, sizeof four);
            const Column* const c = columns + i;
            total[n] += four * Four{x[c[0]], x[c[1]], x[c[2]], x[c[3]]};
        }
    }
    __builtin_memcpy(totals, total, sizeof total);
    for (int n = 0; n < CSR_SLICE; ++n) {
        for (int step = common; step < slice.lengths[n]; ++step, ++i) totals[n] += values[i] * x[columns[i]];
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

// The sums of a slice's chunks for 16 tokens, four chunks at a time: totals [chunks][16]
template <typename Column>
static void dots_of_tokens(const CsrSlice& slice, const float* values, const Column* columns, const float* x,
                           float* totals) {
    const int common = slice.lengths[CSR_SLICE - 1];
    const auto add = [&](int64_t i, F32* sums) {
        add_product(values[i], x + int64_t(columns[i]) * CSR_TOKENS, sums);
    };
    int64_t left = slice.first + common * CSR_SLICE;
    for (int first = 0; first < CSR_SLICE; first += 4) {
        F32 sums[4][VECTORS];
        for (int n = 0; n < 4; ++n) {
            for (int v = 0; v < VECTORS; ++v) sums[n][v] = set_float(0);
        }
        for (int step = 0; step < common; ++step) {
            for (int n = 0; n < 4; ++n) add(slice.first + step * CSR_SLICE + first + n, sums[n]);
        }
        for (int n = 0; n < 4; ++n) {
            for (int step = common; step < slice.lengths[first + n]; ++step, ++left) add(left, sums[n]);
        }
        __builtin_memcpy(totals + first * CSR_TOKENS, sums, sizeof sums);
    }
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
            // All are read before one is written: y may be the sum itself, and where rows lie a multiple of 4 KiB apart a processor
            // takes the next one's address for that of the one just written, and waits.
            for (int64_t t = 0; t < count; ++t) totals[n][t] += y[t * m.rows + target];
            for (int64_t t = 0; t < count; ++t) sum[t * m.rows + target] = totals[n][t];
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
