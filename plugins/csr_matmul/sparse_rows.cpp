#include "plugins/csr_matmul/sparse_rows.h"

#include <algorithm>

#include "plugins/ort/real.h"

namespace intaglio::ort {
namespace {

constexpr int64_t PIECE = 2048;  // non-zeros: some microseconds of work for one token

void one(const Context& context, const CsrMatMulKernel& kernel, const SparseRows& matrix, const float* x, const float* y,
         float* sum) {
    const CsrMatrix view = matrix.view();
    const Scratch scratch(size_t(matrix.rest()) * sizeof(float));
    float* const rest = scratch.as<float>();
    context.parallel_for(matrix.pieces(), 2, [&](int64_t begin, int64_t end) {
        kernel.one(view, matrix.begin(begin), matrix.begin(end), x, y, sum, rest);
    });
    const std::vector<int32_t>& rows = matrix.rest_rows();
    for (size_t i = 0; i < rows.size(); ++i) sum[rows[i]] += rest[i];
}

// Bytes of [blocks][rows][16] float32.
size_t floats(int64_t blocks, int64_t rows) {
    return size_t(checked_product(checked_product(blocks, rows), CSR_TOKENS * int64_t(sizeof(float))));
}

void several(const Context& context, const CsrMatMulKernel& kernel, const SparseRows& matrix, const float* x, int64_t count,
             int64_t depth, const float* y, float* sum) {
    constexpr int64_t TOKENS = CSR_TOKENS;
    const CsrMatrix view = matrix.view();
    const int64_t pieces = matrix.pieces(), blocks = (count + TOKENS - 1) / TOKENS;
    const Scratch turned(floats(blocks, depth));
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
    const Scratch scratch(floats(blocks, matrix.rest()));
    float* const rest = scratch.as<float>();  // [blocks][chunks][16]
    context.parallel_for(blocks * pieces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            const int64_t block = task / pieces, piece = task % pieces, first = block * TOKENS;
            kernel.several(view, matrix.begin(piece), matrix.begin(piece + 1), columns + block * depth * TOKENS,
                           std::min(TOKENS, count - first), y + first * view.rows, sum + first * view.rows,
                           rest + block * matrix.rest() * TOKENS);
        }
    });
    const std::vector<int32_t>& rows = matrix.rest_rows();
    for (int64_t token = 0; token < count; ++token) {
        const float* const found = rest + token / TOKENS * matrix.rest() * TOKENS + token % TOKENS;
        for (size_t i = 0; i < rows.size(); ++i) sum[token * view.rows + rows[i]] += found[int64_t(i) * TOKENS];
    }
}

}  // namespace

SparseRows::SparseRows(const Tensor& values, const Tensor& columns, const Tensor& row_offsets) {
    if (values.shape.rank() != 1 || columns.shape != values.shape || row_offsets.shape.rank() != 1 ||
        row_offsets.shape.axis(0) < 1) {
        throw Error("values " + values.shape.text() + ", columns " + columns.shape.text() + ", row_offsets " +
                    row_offsets.shape.text() + ": expected [nnz], [nnz], [N+1]");
    }
    const int64_t count = values.shape.axis(0);
    rows_ = row_offsets.shape.axis(0) - 1;
    if (rows_ > INT32_MAX || count > INT32_MAX) throw Error("more than 2^31 - 1 rows or values");
    const int32_t* const offsets = row_offsets.as<int32_t>();
    if (offsets[0] != 0 || offsets[rows_] != count || !std::is_sorted(offsets, offsets + rows_ + 1)) {
        throw Error("row_offsets: do not ascend from 0 to the " + std::to_string(count) + " values");
    }
    const int32_t* const given = columns.as<int32_t>();
    for (int64_t i = 0; i < count; ++i) {
        if (given[i] < 0) throw Error("columns: " + std::to_string(given[i]) + ", expected 0 or more");
        widest_ = std::max<int64_t>(widest_, given[i]);
    }
    const std::vector<Chunk> chunks = cut(offsets);
    const RealInput numbers(values);
    values_.reserve(size_t(count));
    (widest_ < 1 << 16 ? narrow_.reserve(size_t(count)) : wide_.reserve(size_t(count)));
    for (size_t first = 0; first < chunks.size(); first += CSR_SLICE) {
        add_slice(chunks.data() + first, numbers.data(), given);
    }
    pieces_.push_back(int32_t(slices_.size()));
}

std::vector<SparseRows::Chunk> SparseRows::cut(const int32_t* offsets) {
    std::vector<Chunk> chunks;
    for (int64_t row = 0; row < rows_; ++row) {
        int32_t first = offsets[row], target = int32_t(row);
        do {
            const int32_t length = std::min<int32_t>(offsets[row + 1] - first, CSR_CHUNK);
            chunks.push_back({first, length, target});
            first += length;
            if (first < offsets[row + 1]) rest_rows_.push_back(int32_t(row));
            target = -int32_t(rest_rows_.size());
        } while (first < offsets[row + 1]);
    }
    std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.length > b.length; });
    for (int32_t filled = int32_t(rest_rows_.size()); chunks.size() % CSR_SLICE != 0;) {
        chunks.push_back({0, 0, -1 - filled++});
    }
    return chunks;
}

void SparseRows::add_slice(const Chunk* chunks, const float* values, const int32_t* columns) {
    CsrSlice slice{};
    slice.first = int32_t(values_.size());
    const int32_t common = chunks[CSR_SLICE - 1].length;
    const auto add = [&](int32_t at) {
        values_.push_back(values[at]);
        if (widest_ < 1 << 16) {
            narrow_.push_back(uint16_t(columns[at]));
        } else {
            wide_.push_back(columns[at]);
        }
    };
    for (int32_t step = 0; step < common; ++step) {
        for (int n = 0; n < CSR_SLICE; ++n) add(chunks[n].first + step);
    }
    for (int n = 0; n < CSR_SLICE; ++n) {
        for (int32_t step = common; step < chunks[n].length; ++step) add(chunks[n].first + step);
        slice.lengths[n] = uint8_t(chunks[n].length);
        slice.targets[n] = chunks[n].target;
    }
    // An empty slice costs what some values do.
    const int64_t work = int64_t(values_.size()) + 4 * CSR_SLICE * int64_t(slices_.size());
    if (work >= int64_t(pieces_.size()) * PIECE) pieces_.push_back(int32_t(slices_.size()));
    slices_.push_back(slice);
}

void add_sparse_product(const Context& context, const CsrMatMulKernel& kernel, const SparseRows& matrix, const float* x,
                        int64_t count, int64_t depth, const float* y, float* sum) {
    if (count == 1) {
        one(context, kernel, matrix, x, y, sum);
    } else {
        several(context, kernel, matrix, x, count, depth, y, sum);
    }
}

}  // namespace intaglio::ort
