#include "plugins/low_rank_matmul/kernel.h"

#include "plugins/cpu/simd_float.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int TOKENS = LOW_RANK_TOKENS, ROWS = LOW_RANK_ROWS;
constexpr int SECOND_LEVEL = 2;  // of caches
constexpr int LINE = 64;

INTAGLIO_FLOAT F32 load(const float* p) { return load_float(p); }
INTAGLIO_FLOAT F32 load(const uint16_t* p) { return load_float16(p); }

// Fewer than FLOATS numbers, and zeros after them.
template <typename T>
INTAGLIO_FLOAT F32 load_part(const T* p, int64_t count) {
    T padded[FLOATS] = {};
    for (int64_t i = 0; i < count; ++i) padded[i] = p[i];
    return load(padded);
}
INTAGLIO_FLOAT void store_part(float* p, F32 v, int64_t count) {
    float padded[FLOATS];
    store_float(padded, v);
    for (int64_t i = 0; i < count; ++i) p[i] = padded[i];
}

// Asks for the rows after these, of which FLOATS numbers are read now. Beyond the matrix it does nothing that counts.
template <int R, typename T>
INTAGLIO_FLOAT void look_ahead(const T* row, int64_t width, int64_t at) {
    if (at * int64_t(sizeof(T)) % LINE >= FLOATS * int64_t(sizeof(T))) return;  // of a line asked for already
    for (int r = 0; r < R; ++r) __builtin_prefetch(row + (R + r) * width + at, 0, SECOND_LEVEL);
}

// --- shrink ---------------------------------------------------------------------------------------------------------

// R rows of the matrix for COUNT tokens; VECTORS sums of each hide the time that an addition takes.
template <int COUNT, int R, int VECTORS, typename T>
static void dots(const T* row, int64_t width, const float* const* x, const float* scale, float* const* hidden) {
    constexpr int STEP = FLOATS * VECTORS;
    F32 sums[COUNT][R][VECTORS];
    for (auto& of_token : sums) {
        for (auto& of_row : of_token) {
            for (F32& part : of_row) part = set_float(0);
        }
    }
    int64_t k = 0;
    for (; k + STEP <= width; k += STEP) {
        for (int v = 0; v < VECTORS; ++v) {
            const int64_t at = k + v * FLOATS;
            look_ahead<R>(row, width, at);
            F32 numbers[R];
            for (int r = 0; r < R; ++r) numbers[r] = load(row + r * width + at);
            for (int t = 0; t < COUNT; ++t) {
                const F32 values = load_float(x[t] + at);
                for (int r = 0; r < R; ++r) sums[t][r][v] = multiply_add(values, numbers[r], sums[t][r][v]);
            }
        }
    }
    for (int64_t left; (left = width - k) > 0; k += FLOATS) {
        const int64_t count = left < FLOATS ? left : FLOATS;
        for (int t = 0; t < COUNT; ++t) {
            const F32 values = load_part(x[t] + k, count);
            for (int r = 0; r < R; ++r) {
                sums[t][r][0] = multiply_add(values, load_part(row + r * width + k, count), sums[t][r][0]);
            }
        }
    }
    for (int t = 0; t < COUNT; ++t) {
        for (int r = 0; r < R; ++r) {
            F32 all = sums[t][r][0];
            for (int v = 1; v < VECTORS; ++v) all = all + sums[t][r][v];
            hidden[t][r] = scale[t] * sum(all);
        }
    }
}

template <int COUNT, typename T>
static void shrink_tokens(const LowRankMatrix& m, int64_t begin, int64_t end, const float* const* x, const float* scale,
                          float* const* hidden) {
    constexpr int AT_ONCE = COUNT > 1 && FLOATS < 16 ? 2 : ROWS;  // as many sums as there are registers
    const T* const numbers = static_cast<const T*>(m.numbers);
    float* to[COUNT];
    int64_t r = begin;
    const auto next = [&] {
        for (int t = 0; t < COUNT; ++t) to[t] = hidden[t] + r;
        return numbers + r * m.width;
    };
    for (; r + AT_ONCE <= end; r += AT_ONCE) dots<COUNT, AT_ONCE, COUNT == 1 ? 2 : 1>(next(), m.width, x, scale, to);
    for (; r < end; ++r) dots<COUNT, 1, COUNT == 1 ? 4 : 1>(next(), m.width, x, scale, to);
}

// --- expand ---------------------------------------------------------------------------------------------------------

// Adds R rows of the matrix, times the numbers from `first` on of each token's `hidden`, to columns begin..end-1.
template <int COUNT, int R, typename T>
static void add_rows(const T* row, int64_t width, int64_t begin, int64_t end, const float* const* hidden, int64_t first,
                     const float* const* y, float* const* sum) {
    F32 factors[COUNT][R];
    for (int t = 0; t < COUNT; ++t) {
        for (int r = 0; r < R; ++r) factors[t][r] = set_float(hidden[t][first + r]);
    }
    int64_t n = begin;
    for (; n + FLOATS <= end; n += FLOATS) {
        look_ahead<R>(row, width, n);
        F32 numbers[R];
        for (int r = 0; r < R; ++r) numbers[r] = load(row + r * width + n);
        for (int t = 0; t < COUNT; ++t) {
            F32 total = load_float(y[t] + n);
            for (int r = 0; r < R; ++r) total = multiply_add(factors[t][r], numbers[r], total);
            store_float(sum[t] + n, total);
        }
    }
    if (n == end) return;
    const int64_t count = end - n;
    F32 numbers[R];
    for (int r = 0; r < R; ++r) numbers[r] = load_part(row + r * width + n, count);
    for (int t = 0; t < COUNT; ++t) {
        F32 total = load_part(y[t] + n, count);
        for (int r = 0; r < R; ++r) total = multiply_add(factors[t][r], numbers[r], total);
        store_part(sum[t] + n, total, count);
    }
}

template <int COUNT, typename T>
static void expand_tokens(const LowRankMatrix& m, int64_t begin, int64_t end, const float* const* hidden,
                          const float* const* y, float* const* sum) {
    const T* const numbers = static_cast<const T*>(m.numbers);
    int64_t r = 0;
    for (; r + ROWS <= m.rank; r += ROWS) {
        add_rows<COUNT, ROWS>(numbers + r * m.width, m.width, begin, end, hidden, r, y, sum);
        y = const_cast<const float* const*>(sum);  // the next rows are added to what is there
    }
    for (; r < m.rank; ++r) {
        add_rows<COUNT, 1>(numbers + r * m.width, m.width, begin, end, hidden, r, y, sum);
        y = const_cast<const float* const*>(sum);
    }
}

// --- tokens and types -----------------------------------------------------------------------------------------------

template <typename T>
static void shrink_any(const LowRankMatrix& m, int64_t begin, int64_t end, const float* const* x, const float* scale,
                       int64_t count, float* const* hidden) {
    if (count == TOKENS) return shrink_tokens<TOKENS, T>(m, begin, end, x, scale, hidden);
    for (int64_t t = 0; t < count; ++t) shrink_tokens<1, T>(m, begin, end, x + t, scale + t, hidden + t);
}

static void shrink(const LowRankMatrix& m, int64_t begin, int64_t end, const float* const* x, const float* scale,
                   int64_t count, float* const* hidden) {
    if (m.halves) return shrink_any<uint16_t>(m, begin, end, x, scale, count, hidden);
    shrink_any<float>(m, begin, end, x, scale, count, hidden);
}

template <typename T>
static void expand_any(const LowRankMatrix& m, int64_t begin, int64_t end, const float* const* hidden,
                       const float* const* y, int64_t count, float* const* sum) {
    if (count == TOKENS) return expand_tokens<TOKENS, T>(m, begin, end, hidden, y, sum);
    for (int64_t t = 0; t < count; ++t) expand_tokens<1, T>(m, begin, end, hidden + t, y + t, sum + t);
}

static void expand(const LowRankMatrix& m, int64_t begin, int64_t end, const float* const* hidden, const float* const* y,
                   int64_t count, float* const* sum) {
    if (m.halves) return expand_any<uint16_t>(m, begin, end, hidden, y, count, sum);
    expand_any<float>(m, begin, end, hidden, y, count, sum);
}

}  // namespace

const LowRankMatMulKernel low_rank_matmul_kernel = {shrink, expand};

}  // namespace intaglio::INTAGLIO_ISA
