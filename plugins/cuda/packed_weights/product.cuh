// y = x·wᵀ of float16 x and a weight of 2 to 6 or 8 bits, on the matrix unit, with float32 sums.
//
// A warp computes 16 channels and 8 or more rows of x: the weight is the matrix unit's A, x its B. A lane, g = lane / 4 and
// t = lane % 4, unpacks eights of numbers of the channels 2g and 2g+1 straight into fragments in registers: the order of k
// within a product is free, and so an eight are two steps' columns 2t, 2t+1, 2t+8, 2t+9, and x's fragments of both steps are
// 16 bytes of one row. The two channels are the rows g and g+8 of the tile: each lane's sums lie side by side.
//
// Two shapes of a block, one of them for each number of rows (see geometry.py), both of eight warps:
//   Few   16 channels, up to 32 rows; the warps take different k, which they read straight from global memory.
//   Many  128 channels, 16 of each warp, up to 64 rows; k goes through stages in shared memory.
//
// A `Source` says what numbers mean: `bits`; `Lane`, what a lane holds of its channels; `Ahead`, what has to be read for 32
// numbers of each, which `fetch` begins; `Ready`, what `arrive` makes of it; `decode`, eight numbers to eight float16.
// A `Sparse` is a matrix whose product with x is added to the sums before they are rounded, or sparse_rows::None.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/half.cuh"
#include "cuda/matrix_unit.cuh"
#include "cuda/packed_weights/numbers.cuh"
#include "cuda/packed_weights/sparse_rows.cuh"

namespace packed_product {

constexpr int THREADS = 256, WARPS = 8;
constexpr int BLOCKS = 2;  // of a multiprocessor: a launch bound, for half of its registers
constexpr int CHUNK = 32;  // numbers of a channel that share what `fetch` reads
constexpr int TILE = 16;   // channels of a warp
constexpr int FEW_CHANNELS = TILE, FEW_ROWS = 32;
constexpr int MANY_CHANNELS = TILE * WARPS, MANY_ROWS = 64;

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

// sum[i][e] of a lane: row of x 8i + 2t + e%2, channel 2g + e/2.
template <int GROUPS>
using Sums = float[GROUPS][4];

// The lane's channels of the warp's, which begin at `first`; the last one in place of those beyond.
__device__ __forceinline__ void lane_channels(int32_t (&channel)[2], int32_t first, int32_t channels) {
#pragma unroll
    for (int j = 0; j < 2; ++j) channel[j] = min(first + int32_t(threadIdx.x % 32 / 4 * 2) + j, channels - 1);
}

// Adds the products of an eight of both channels with that of 8 rows of x.
__device__ __forceinline__ void multiply_eight(float (&sums)[4], const uint32_t (&w)[2][4], const uint4& x) {
    const uint32_t b[2][2] = {{x.x, x.y}, {x.z, x.w}};
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        const uint32_t *even = w[0] + 2 * step, *odd = w[1] + 2 * step;
        const uint32_t a[4] = {even[0], odd[0], even[1], odd[1]};
        matrix_unit::multiply_accumulate(sums, a, b[step]);
    }
}

// Writes the results of a row and two channels, together where `to` is aligned to both; `count` channels exist.
__device__ __forceinline__ void store_pair(uint16_t* __restrict__ to, float even, float odd, int32_t count, bool whole) {
    const uint16_t bits[2] = {half::from_float(even), half::from_float(odd)};
    if (whole && count >= 2) {
        *reinterpret_cast<uint32_t*>(to) = uint32_t(bits[1]) << 16 | bits[0];
    } else {
        if (count > 0) to[0] = bits[0];
        if (count > 1) to[1] = bits[1];
    }
}

}  // namespace packed_product

#include "cuda/packed_weights/few_rows.cuh"
#include "cuda/packed_weights/many_rows.cuh"

namespace packed_product {

// y: float16 [rows, channels]. `few`: the most rows for which the shape is Few; the grid is as large as the shape needs.
template <class Source, class Sparse = sparse_rows::None>
__device__ __forceinline__ void compute(
    const Source& source, const uint16_t* x, const int32_t* packed, int32_t rows, int32_t depth, int32_t channels,
    int32_t few, int8_t* shared, uint16_t* y, const Sparse& sparse = {}) {
    const bool is_few = rows <= few;
    const int32_t each = is_few ? FEW_ROWS : MANY_ROWS;
    if (rows == 0) return;
    // Blocks of the same channels follow each other: the first of them brings the weights to the cache.
    const int32_t groups = (rows + each - 1) / each, tile = groups == 1 ? int32_t(blockIdx.x) : int32_t(blockIdx.x) / groups;
    const int32_t group = int32_t(blockIdx.x) - tile * groups;
    const Problem problem = {x, packed, rows, depth, channels, group * each, tile * (is_few ? FEW_CHANNELS : MANY_CHANNELS)};
    if (problem.first_channel >= channels) return;
    if (!is_few) compute_many(source, problem, sparse, shared, y);
    else if (!async_copy::is_aligned(x) || !async_copy::is_aligned(packed)) compute_in_turn<1, false>(source, problem, sparse, shared, y);
    else if (rows <= 8) compute_few<1, true>(source, problem, sparse, shared, y);
    else if (rows <= 16 || Source::bits == 8) compute_in_turn<2, true>(source, problem, sparse, shared, y);  // 8 bits take more registers
    else compute_few<4, true>(source, problem, sparse, shared, y);
}

}  // namespace packed_product
