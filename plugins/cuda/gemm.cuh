// The product of two int8 matrices, both row-major, in tiles: a block computes 64×128 sums with 4 warps, each warp 64×32.
//
// Shared memory holds STAGES tiles of A (64 rows of 64 bytes) and of B (64 rows of 128 bytes), swizzled so that no two
// lanes meet in a bank: the 16-byte chunk c of row r of A lies at chunk c ^ (r/2 % 4), the 32-byte chunk c of row r of B
// at c ^ (r/4 % 4). The matrix unit wants four rows of B in one register, so a lane reads four bytes of four rows each
// and transposes them. That gives it four columns; they become the same column of four 8-wide tiles, and so each
// lane's sums are 8 columns that lie side by side: columns 8t .. 8t+7, t = lane % 4, rows lane/4 + 8i.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/epilogue.cuh"
#include "cuda/matrix_unit.cuh"

namespace gemm {

constexpr int TILE_M = 64, TILE_N = 128, TILE_K = 64;
constexpr int THREADS = 128;
#if __CUDA_ARCH__ >= 800
constexpr int STAGES = 3;
#else
constexpr int STAGES = 2;  // the copies wait in registers, so more would not help
#endif
constexpr int STAGE_BYTES = (TILE_M + TILE_N) * TILE_K;
constexpr int SHARED_BYTES = STAGES * STAGE_BYTES;

// A product a·b of [m, k] times [k, n], and which tile of it this block computes.
struct Problem {
    const int8_t *a, *b;
    int32_t m, k, n;
    int32_t first_row, first_column;
};

// The sums of one lane: row 16·i + 8·(e/2) + lane/4, column 32·warp + 8·(lane%4) + 4·(e%2) + j for sum[i][j][e].
using Sums = int32_t[4][4][4];

struct PlaceA {
    __device__ __forceinline__ int operator()(int row, int column) const { return row * TILE_K + (column ^ (row / 2 % 4 * 16)); }
};
struct PlaceB {
    __device__ __forceinline__ int operator()(int row, int column) const { return row * TILE_N + (column ^ (row / 4 % 4 * 32)); }
};

// The tiles of A and B from `first_k` on, on their way to a stage.
struct Copies {
    async_copy::TileCopy<TILE_M, TILE_K, THREADS> a;
    async_copy::TileCopy<TILE_K, TILE_N, THREADS> b;

    __device__ __forceinline__ void start(const Problem& problem, int32_t first_k, int8_t* stage) {
        const int8_t* from_a = problem.a + int64_t(problem.first_row) * problem.k + first_k;
        const int8_t* from_b = problem.b + int64_t(first_k) * problem.n + problem.first_column;
        const bool a_aligned = problem.k % 16 == 0 && async_copy::is_aligned(problem.a);
        const bool b_aligned = problem.n % 16 == 0 && async_copy::is_aligned(problem.b);
        a.start(stage, from_a, problem.k, problem.m - problem.first_row, problem.k - first_k, a_aligned, PlaceA());
        b.start(stage + TILE_M * TILE_K, from_b, problem.n, problem.k - first_k, problem.n - problem.first_column, b_aligned, PlaceB());
    }
    __device__ __forceinline__ void finish() {
        a.finish();
        b.finish();
    }
};

// Adds the product of the tiles in one stage to the sums.
__device__ __forceinline__ void multiply_stage(Sums& sums, const int8_t* stage) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int8_t* b_tile = stage + TILE_M * TILE_K;
#pragma unroll
    for (int step = 0; step < TILE_K / 32; ++step) {
        uint32_t b[4][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            // Rows that differ by 4t: t is also their swizzle.
            const int8_t* from = b_tile + (32 * step + 16 * half + 4 * (lane % 4)) * TILE_N + 32 * (warp ^ (lane % 4)) + 4 * (lane / 4);
            uint32_t rows[4], columns[4];
#pragma unroll
            for (int row = 0; row < 4; ++row) rows[row] = *reinterpret_cast<const uint32_t*>(from + row * TILE_N);
            matrix_unit::transpose_bytes(rows, columns);
#pragma unroll
            for (int column = 0; column < 4; ++column) b[column][half] = columns[column];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 16 * i + lane % 16, chunk = 2 * step + lane / 16;
            uint32_t a[4];
            matrix_unit::load_fragment(a, stage + row * TILE_K + 16 * (chunk ^ (row / 2 % 4)));
#pragma unroll
            for (int j = 0; j < 4; ++j) matrix_unit::multiply_accumulate(sums[i][j], a, b[j]);
        }
    }
}

// The sums of this block's tile; `shared` has SHARED_BYTES, aligned to 16. Every row and column beyond m, k, n counts
// as zeros, and nothing beyond is read.
__device__ __forceinline__ void multiply(Sums& sums, const Problem& problem, int8_t* shared) {
    const int32_t tiles = (problem.k + TILE_K - 1) / TILE_K;
    Copies copies;
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < tiles) {
            copies.start(problem, stage * TILE_K, shared + stage * STAGE_BYTES);
            copies.finish();
        }
        async_copy::commit();
    }
#pragma unroll 1
    for (int32_t tile = 0; tile < tiles; ++tile) {
        async_copy::wait<STAGES - 2>();
        __syncthreads();  // this tile is there for all, and all have left the stage that is filled next
        const int32_t next = tile + STAGES - 1;
        if (next < tiles) copies.start(problem, next * TILE_K, shared + next % STAGES * STAGE_BYTES);
        multiply_stage(sums, shared + tile % STAGES * STAGE_BYTES);
        if (next < tiles) copies.finish();
        async_copy::commit();
    }
}

// Replaces each sum by epilogue(sum, column); the column is less than n.
template <class Epilogue>
__device__ __forceinline__ void finish(Sums& sums, const Problem& problem, const Epilogue& epilogue) {
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
                sum = epilogue(sum, factors);
            }
    }
}

// Writes the sums to y, [m, n] in row-major order.
template <class Out>
__device__ __forceinline__ void store(const Sums& sums, const Problem& problem, Out* __restrict__ y) {
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

}  // namespace gemm
