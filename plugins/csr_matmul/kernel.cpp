#include "plugins/csr_matmul/kernel.h"

#include "plugins/simd_float.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Four sums side by side: one would wait for itself at every step.
template <typename Column>
static float dot(const float* values, const Column* columns, const float* x, int64_t begin, int64_t end) {
    float total[4] = {};
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) {
        for (int lane = 0; lane < 4; ++lane) total[lane] += values[i + lane] * x[columns[i + lane]];
    }
    for (; i < end; ++i) total[0] += values[i] * x[columns[i]];
    return (total[0] + total[1]) + (total[2] + total[3]);
}

template <typename Column>
static void one_token(const CsrMatrix& m, const Column* columns, int64_t piece, const float* x, const float* y,
                      float* sum, float* head) {
    const int64_t begin = piece * CSR_PIECE, end = smaller(begin + CSR_PIECE, m.nonzeros);
    const int64_t first = m.first_rows[piece], last = m.first_rows[piece + 1];
    *head = dot(m.values, columns, x, begin, smaller(m.row_offsets[first], end));
    for (int64_t row = first; row < last; ++row) {
        sum[row] = y[row] + dot(m.values, columns, x, m.row_offsets[row], smaller(m.row_offsets[row + 1], end));
    }
}

static void one(const CsrMatrix& m, int64_t piece, const float* x, const float* y, float* sum, float* head) {
    if (m.columns) return one_token(m, m.columns, piece, x, y, sum, head);
    one_token(m, m.wide_columns, piece, x, y, sum, head);
}

constexpr int VECTORS = CSR_TOKENS / FLOATS;

template <typename Column>
static void dots(const float* values, const Column* columns, const float* x, int64_t begin, int64_t end, float* total) {
    F32 sums[2][VECTORS];
    for (int v = 0; v < VECTORS; ++v) sums[0][v] = sums[1][v] = set_float(0);
    int64_t i = begin;
    for (; i + 2 <= end; i += 2) {
        for (int step = 0; step < 2; ++step) {
            const F32 value = set_float(values[i + step]);
            const float* const row = x + int64_t(columns[i + step]) * CSR_TOKENS;
            for (int v = 0; v < VECTORS; ++v) {
                sums[step][v] = multiply_add(value, load_float(row + v * FLOATS), sums[step][v]);
            }
        }
    }
    if (i < end) {
        const F32 value = set_float(values[i]);
        for (int v = 0; v < VECTORS; ++v) {
            const float* const row = x + int64_t(columns[i]) * CSR_TOKENS;
            sums[0][v] = multiply_add(value, load_float(row + v * FLOATS), sums[0][v]);
        }
    }
    for (int v = 0; v < VECTORS; ++v) {
        const F32 both = sums[0][v] + sums[1][v];
        __builtin_memcpy(total + v * FLOATS, &both, sizeof both);
    }
}

template <typename Column>
static void several_tokens(const CsrMatrix& m, const Column* columns, int64_t piece, const float* x, int64_t count,
                           const float* y, float* sum, float* head) {
    const int64_t begin = piece * CSR_PIECE, end = smaller(begin + CSR_PIECE, m.nonzeros);
    const int64_t first = m.first_rows[piece], last = m.first_rows[piece + 1];
    dots(m.values, columns, x, begin, smaller(m.row_offsets[first], end), head);
    for (int64_t row = first; row < last; ++row) {
        float total[CSR_TOKENS];
        dots(m.values, columns, x, m.row_offsets[row], smaller(m.row_offsets[row + 1], end), total);
        for (int64_t t = 0; t < count; ++t) sum[t * m.rows + row] = y[t * m.rows + row] + total[t];
    }
}

static void several(const CsrMatrix& m, int64_t piece, const float* x, int64_t count, const float* y, float* sum,
                    float* head) {
    if (m.columns) return several_tokens(m, m.columns, piece, x, count, y, sum, head);
    several_tokens(m, m.wide_columns, piece, x, count, y, sum, head);
}

}  // namespace

const CsrMatMulKernel csr_matmul_kernel = {one, several};

}  // namespace intaglio::INTAGLIO_ISA
