// y = x·wᵀ of float16 x and a weight of 2, 3, 4 or 8 bits, on the matrix unit, with float32 sums.
//
// A warp computes 16 channels for each of TILES tiles, and 8 or more rows of x: the weight is the matrix unit's A, x its B.
// A lane, g = lane / 4 and t = lane % 4, unpacks eights of numbers of N = 2·TILES channels, N·g and those behind it, straight
// into fragments in registers: the order of k within a product is free, and so an eight are two steps' columns 2t, 2t+1,
// 2t+8, 2t+9, and x's fragments of both steps are 16 bytes of one row. Two channels are the rows g, g+8 of one tile: each
// lane's sums are N channels that lie side by side.
//
// Two shapes of a block, one of them for each number of rows (see geometry.py); both have up to 64 rows of x.
//   Few   16 channels; the four warps take different k, which they read straight from global memory.
//   Many  128 channels, 32 of each warp; k goes through stages in shared memory.
//
// A `Source` says what numbers mean: `bits`; `Lane<N>`, what a lane holds of its N channels; `Ahead<N>`, what has to be
// read for 32 numbers of each, which `fetch` begins early; `decode`, eight numbers to eight float16.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/half.cuh"
#include "cuda/matrix_unit.cuh"
#include "cuda/packed_weights/numbers.cuh"

namespace packed_product {

constexpr int THREADS = 128, WARPS = 4;
constexpr int BLOCKS = 2;  // of a multiprocessor: a launch bound, else the compiler saves registers for a third
constexpr int CHUNK = 32;  // numbers of a channel that share what `fetch` reads
constexpr int ROWS = 64;   // of x, that a block has at most
constexpr int FEW_CHANNELS = 16, MANY_CHANNELS = 128;

#ifndef INTAGLIO_DYNAMIC_SHARED
#define INTAGLIO_DYNAMIC_SHARED(type, name) extern __shared__ __align__(128) type name[]
#endif

// x: float16 [rows, depth]; packed: int32 [channels, depth·bits/32]; depth is a multiple of 32; and where this block's rows
// and channels begin. Arrays that do not begin at a multiple of 16 bytes, such as a part of another, are copied slowly.
struct Problem {
    const uint16_t* x;
    const int32_t* packed;
    int32_t rows, depth, channels;
    int32_t first_row, first_channel;
};

// sum[i][m][e] of a lane: row of x 8i + 2t + e%2, channel N·g + 2m + e/2.
template <int GROUPS, int TILES>
using Sums = float[GROUPS][TILES][4];

// The lane's channels of the warp's, which begin at `first`; the last one in place of those beyond.
template <int N>
__device__ __forceinline__ void lane_channels(int32_t (&channel)[N], int32_t first, int32_t channels) {
#pragma unroll
    for (int j = 0; j < N; ++j) channel[j] = min(first + int32_t(threadIdx.x % 32 / 4 * N) + j, channels - 1);
}

// Adds the products of an eight of each channel with that of 8 rows of x.
template <int TILES>
__device__ __forceinline__ void multiply_eight(float (&sums)[TILES][4], const uint32_t (&w)[2 * TILES][4], const uint4& x) {
    const uint32_t b[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const uint32_t *even = w[2 * m] + 2 * step, *odd = w[2 * m + 1] + 2 * step;
            const uint32_t a[4] = {even[0], odd[0], even[1], odd[1]};
            matrix_unit::multiply_accumulate(sums[m], a, b[step]);
        }
}

// Writes results that lie side by side, together where all exist and `to` is aligned to them; `count` exist.
template <int LENGTH>
__device__ __forceinline__ void store(uint16_t* __restrict__ to, const float (&values)[LENGTH], int32_t count, bool whole) {
    uint16_t bits[LENGTH];
#pragma unroll
    for (int i = 0; i < LENGTH; ++i) bits[i] = half::from_float(values[i]);
    if (whole && count >= LENGTH) {
#pragma unroll
        for (int i = 0; i < LENGTH; i += 2) reinterpret_cast<uint32_t*>(to)[i / 2] = uint32_t(bits[i + 1]) << 16 | bits[i];
    } else {
#pragma unroll
        for (int i = 0; i < LENGTH; ++i)
            if (i < count) to[i] = bits[i];
    }
}

// Writes the sums of a warp whose channels begin at `first`.
template <int GROUPS, int TILES>
__device__ __forceinline__ void store_sums(const Sums<GROUPS, TILES>& sums, const Problem& problem, int32_t first, uint16_t* __restrict__ y) {
    constexpr int N = 2 * TILES;
    const int lane = threadIdx.x % 32;
    const int32_t channel = first + lane / 4 * N;
#pragma unroll
    for (int i = 0; i < GROUPS; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int32_t row = problem.first_row + 8 * i + 2 * (lane % 4) + e;
            if (row >= problem.rows) continue;
            float values[N];
#pragma unroll
            for (int j = 0; j < N; ++j) values[j] = sums[i][j / 2][e + j % 2 * 2];
            store(y + int64_t(row) * problem.channels + channel, values, problem.channels - channel, problem.channels % 2 == 0);
        }
}

}  // namespace packed_product

#include "cuda/packed_weights/few_rows.cuh"
#include "cuda/packed_weights/many_rows.cuh"

namespace packed_product {

// y: float16 [rows, channels]. `few`: the most rows for which the shape is Few; the grid is as large as the shape needs.
template <class Source>
__device__ __forceinline__ void compute(
    const Source& source, const uint16_t* x, const int32_t* packed, int32_t rows, int32_t depth, int32_t channels,
    int32_t few, int8_t* shared, uint16_t* y) {
    const int32_t groups = (rows + ROWS - 1) / ROWS, side = rows <= few ? FEW_CHANNELS : MANY_CHANNELS;
    if (groups == 0) return;
    // Blocks of the same channels follow each other: the first of them brings the weights to the cache.
    const int32_t group = int32_t(blockIdx.x) % groups, tile = int32_t(blockIdx.x) / groups;
    const Problem problem = {x, packed, rows, depth, channels, group * ROWS, tile * side};
    if (problem.first_channel >= channels) return;
    if (rows > few) compute_many(source, problem, shared, y);
    else if (rows - problem.first_row <= 8) compute_few<1>(source, problem, shared, y);
    else compute_few<ROWS / 8>(source, problem, shared, y);
}

}  // namespace packed_product
