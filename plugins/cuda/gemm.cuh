// The product of two int8 matrices, both row-major, in tiles of two shapes; a block has 4 warps.
//
// A Wide block computes 64×128 sums, each warp 64×32 of them. For few rows that would be few blocks: 6 of 768 columns, where
// a T4 has 40 multiprocessors. A Narrow block computes 16×32 sums, and its warps share out k among themselves: each
// multiplies 64 of 256 rows of B, and at the end their sums are added up.
//
// Shared memory holds STAGES tiles of A and of B, in the same place for both shapes: of A 64 rows of 64 bytes, where a
// Narrow tile's 16 rows of 256 bytes are 4 times 16 rows, one part for each warp; of B 64 rows of 128 bytes, where a Narrow
// tile's 256 rows of 32 bytes are 4 times 64 rows beside each other. They are swizzled so that no two lanes meet in a bank:
// the 16-byte chunk c of row r of A lies at chunk c ^ (r/2 % 4), the 32-byte chunk c of row r of B at c ^ (r/4 % 4). The
// matrix unit wants four rows of B in one register, so a lane reads four bytes of four rows each and transposes them.
// That gives it four columns; they become the same column of four 8-wide tiles, and so each lane's sums are 8 columns
// that lie side by side: columns 8t .. 8t+7, t = lane % 4, rows lane/4 + 8i.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/epilogue.cuh"
#include "cuda/matrix_unit.cuh"

namespace gemm {

constexpr int THREADS = 128, WARPS = 4;
#if __CUDA_ARCH__ >= 800
constexpr int STAGES = 3;
#else
constexpr int STAGES = 2;  // the copies wait in registers, so more would not help
#endif

struct Wide {
    static constexpr int M = 64, N = 128, K = 64, ROW_TILES = M / 16;  // of 16 rows, for each warp
};
struct Narrow {
    static constexpr int M = 16, N = 32, K = 256, ROW_TILES = 1;
};
constexpr int PITCH_A = 64, PITCH_B = 128, ROWS = 64;  // of a tile in shared memory, of either shape
constexpr int STAGE_BYTES = ROWS * (PITCH_A + PITCH_B);
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;

// A product a·b of [m, k] times [k, n], and which tile of it this block computes.
struct Problem {
    const int8_t *a, *b;
    int32_t m, k, n;
    int32_t first_row, first_column;
};

// The sums of one lane: row 16·i + 8·(e/2) + lane/4, column 8·(lane%4) + 4·(e%2) + j for sum[i][j][e]; of a Wide tile
// columns begin at 32·warp, of a Narrow one they cover the warp's part of k.
template <class Shape>
using Sums = int32_t[Shape::ROW_TILES][4][4];

template <class Shape>
struct PlaceA {
    __device__ __forceinline__ int operator()(int row, int column) const {
        row += column / PITCH_A * Shape::M;
        column %= PITCH_A;
        return row * PITCH_A + (column ^ (row / 2 % 4 * 16));
    }
};
template <class Shape>
struct PlaceB {
    __device__ __forceinline__ int operator()(int row, int column) const {
        column += row / ROWS * Shape::N;
        row %= ROWS;
        return row * PITCH_B + (column ^ (row / 4 % 4 * 32));
    }
};

// The tiles of A and B from `first_k` on, on their way to a stage.
template <class Shape>
struct Copies {
    async_copy::TileCopy<Shape::M, Shape::K, THREADS> a;
    async_copy::TileCopy<Shape::K, Shape::N, THREADS> b;

    __device__ __forceinline__ void start(const Problem& problem, int32_t first_k, int8_t* stage) {
        const int8_t* from_a = problem.a + int64_t(problem.first_row) * problem.k + first_k;
        const int8_t* from_b = problem.b + int64_t(first_k) * problem.n + problem.first_column;
        const int32_t rows = problem.m - problem.first_row, columns = problem.n - problem.first_column;
        const bool a_aligned = problem.k % 16 == 0 && async_copy::is_aligned(problem.a);
        const bool b_aligned = problem.n % 16 == 0 && async_copy::is_aligned(problem.b);
        a.start(stage, from_a, problem.k, rows, problem.k - first_k, a_aligned, PlaceA<Shape>());
        b.start(stage + ROWS * PITCH_A, from_b, problem.n, problem.k - first_k, columns, b_aligned, PlaceB<Shape>());
    }
    __device__ __forceinline__ void finish() {
        a.finish();
        b.finish();
    }
};

// Adds the product of the tiles in one stage to the sums.
template <class Shape>
__device__ __forceinline__ void multiply_stage(Sums<Shape>& sums, const int8_t* stage) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int8_t* b_tile = stage + ROWS * PITCH_A;
    const int first = Shape::ROW_TILES == 1 ? 16 * warp : 0;  // the warp's rows of A's tile
#pragma unroll
    for (int step = 0; step < PITCH_A / 32; ++step) {
        uint32_t b[4][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // Rows that differ by 4t: t is also their swizzle.
            const int8_t* from = b_tile + (32 * step + 16 * half + 4 * (lane % 4)) * PITCH_B + 32 * (warp ^ (lane % 4)) + 4 * (lane / 4);
            uint32_t rows[4], columns[4];
#pragma unroll
            for (int row = 0; row < 4; ++row) rows[row] = *reinterpret_cast<const uint32_t*>(from + row * PITCH_B);
            matrix_unit::transpose_bytes(rows, columns);
#pragma unroll
            for (int column = 0; column < 4; ++column) b[column][half] = columns[column];
        }
#pragma unroll
        for (int i = 0; i < Shape::ROW_TILES; ++i) {
            const int row = first + 16 * i + lane % 16, chunk = 2 * step + lane / 16;
            uint32_t a[4];
            matrix_unit::load_fragment(a, stage + row * PITCH_A + 16 * (chunk ^ (row / 2 % 4)));
#pragma unroll
            for (int j = 0; j < 4; ++j) matrix_unit::multiply_accumulate(sums[i][j], a, b[j]);
        }
    }
}

// The sums of this block's tile; `shared` has SHARED_BYTES, aligned to 16. Every row and column beyond m, k, n counts
// as zeros, and nothing beyond is read.
template <class Shape>
__device__ __forceinline__ void multiply(Sums<Shape>& sums, const Problem& problem, int8_t* shared) {
    const int32_t tiles = (problem.k + Shape::K - 1) / Shape::K;
    Copies<Shape> copies;
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < tiles) {
            copies.start(problem, stage * Shape::K, shared + stage * STAGE_BYTES);
            copies.finish();
        }
        async_copy::commit();
    }
#pragma unroll 1
    for (int32_t tile = 0; tile < tiles; ++tile) {
        async_copy::wait<STAGES - 2>();
        __syncthreads();  // this tile is there for all, and all have left the stage that is filled next
        const int32_t next = tile + STAGES - 1;
        if (next < tiles) copies.start(problem, next * Shape::K, shared + next % STAGES * STAGE_BYTES);
        multiply_stage<Shape>(sums, shared + tile % STAGES * STAGE_BYTES);
        if (next < tiles) copies.finish();
        async_copy::commit();
    }
}

// Replaces each sum by that of the epilogue; the column is less than n.
template <class Epilogue>
__device__ __forceinline__ void finish(Sums<Wide>& sums, const Problem& problem, const Epilogue& epilogue) {
    const int32_t first = problem.first_column + threadIdx.x / 32 * 32 + threadIdx.x % 4 * 8;
#pragma unroll
    for (int column = 0; column < 8; ++column) {
        if (first + column >= problem.n) return;
        const auto factors = epilogue.factors(first + column);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int32_t& sum = sums[i][column % 4][2 * half + column / 4];
                const int32_t row = problem.first_row + 16 * i + 8 * half + threadIdx.x % 32 / 4;
                sum = epilogue(sum, factors, int64_t(row) * problem.n + first + column);
            }
    }
}

// Writes the sums to y, [m, n] in row-major order.
template <class Out>
__device__ __forceinline__ void store(const Sums<Wide>& sums, const Problem& problem, Out* __restrict__ y) {
    const int lane = threadIdx.x % 32;
    const int32_t column = problem.first_column + threadIdx.x / 32 * 32 + lane % 4 * 8;
    const bool whole = problem.n % 8 == 0 && reinterpret_cast<uint64_t>(y) % 8 == 0;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int32_t row = problem.first_row + 16 * i + 8 * half + lane / 4;
            if (row >= problem.m) continue;
            int32_t results[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) results[j] = sums[i][j % 4][2 * half + j / 4];
            epilogue::store_eight(y + int64_t(row) * problem.n + column, results, problem.n - column, whole);
        }
}

// Adds up the sums of the warps, and writes what the epilogue makes of them to y; `shared` as for `multiply`.
template <class Epilogue, class Out>
__device__ __forceinline__ void finish_and_store(const Sums<Narrow>& sums, const Problem& problem, const Epilogue& epilogue,
                                                 int8_t* shared, Out* __restrict__ y) {
    int32_t* const parts = reinterpret_cast<int32_t*>(shared);  // [warp][row][column]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();  // all have read the last stage
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int row = 8 * (e / 2) + lane / 4, column = 8 * (lane % 4) + 4 * (e % 2);
        *reinterpret_cast<uint4*>(parts + (warp * Narrow::M + row) * Narrow::N + column) =
            make_uint4(sums[0][0][e], sums[0][1][e], sums[0][2][e], sums[0][3][e]);
    }
    __syncthreads();  // all parts
    const int row = threadIdx.x / 4, first = threadIdx.x % 4 * 8;  // of half the threads, eight columns each
    const int32_t column = problem.first_column + first;
    if (row >= Narrow::M || problem.first_row + row >= problem.m || column >= problem.n) return;
    int32_t results[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        results[j] = 0;
        if (column + j >= problem.n) continue;
        uint32_t sum = 0;
#pragma unroll
        for (int part = 0; part < WARPS; ++part) sum += uint32_t(parts[(part * Narrow::M + row) * Narrow::N + first + j]);
        const int64_t position = int64_t(problem.first_row + row) * problem.n + column + j;
        results[j] = epilogue(int32_t(sum), epilogue.factors(column + j), position);
    }
    const bool whole = problem.n % 8 == 0 && reinterpret_cast<uint64_t>(y) % 8 == 0;
    epilogue::store_eight(y + int64_t(problem.first_row + row) * problem.n + column, results, problem.n - column, whole);
}

}  // namespace gemm
