// y = x·wᵀ of float32 x and a weight of 2 to 6 or 8 bits, in float32 throughout, which the matrix unit cannot.
//
// A block computes 4 channels of 8 rows of x. A thread takes every 128th eight of their numbers and unpacks them once for
// all rows; then the warps' sums are added in the warps' order.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/half.cuh"
#include "cuda/packed_weights/numbers.cuh"
#include "cuda/packed_weights/sparse_rows.cuh"
#include "cuda/warp.cuh"

namespace packed_product_float32 {

constexpr int THREADS = 128, WARPS = 4;
constexpr int ROWS = 8, CHANNELS = 4;
constexpr int SUMS = WARPS * ROWS * CHANNELS;  // of all warps

// x: float32 [rows, depth]; packed: int32 [channels, depth·bits/32]; and where this block's rows and channels begin.
struct Problem {
    const float* __restrict__ x;
    const int32_t* __restrict__ packed;
    int32_t rows, depth, channels, bits;
    int32_t first_row, first_channel;

    __device__ __forceinline__ int32_t channel(int j) const { return min(first_channel + j, channels - 1); }
};

// Eight values that lie side by side; x may be a part of another array, whose rows are not aligned to 16 bytes.
__device__ __forceinline__ void load_eight(float (&values)[8], const float* from) {
    if (async_copy::is_aligned(from)) {
        const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
        const float loaded[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = loaded[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = from[i];
    }
}

// `first_row` and `first_channel` of this block; false where there is nothing for it to do.
__device__ __forceinline__ bool locate(Problem& problem) {
    const int32_t groups = (problem.rows + ROWS - 1) / ROWS;
    problem.first_row = groups ? int32_t(blockIdx.x) % groups * ROWS : 0;
    problem.first_channel = groups ? int32_t(blockIdx.x) / groups * CHANNELS : 0;
    return groups && problem.first_channel < problem.channels;
}

// Adds the products with the sparse matrix to sums of this warp: [row, channel].
__device__ __forceinline__ void add_sparse(const Problem& problem, const sparse_rows::Matrix& sparse, float* sums) {
    __syncwarp();  // the warp's sums are there
    sparse_rows::multiply_pieces<WARPS, CHANNELS, ROWS>(
        sparse, problem.first_channel, problem.channels, problem.x + int64_t(problem.first_row) * problem.depth, problem.depth,
        problem.rows - problem.first_row, [&](int row, int channel, float product) { sums[row * CHANNELS + channel] += product; });
}
__device__ __forceinline__ void add_sparse(const Problem&, const sparse_rows::None&, float*) {}

// y: float32 [rows, channels]. `decode(w, numbers, j, k)` gives the weights of the eight numbers from k on of channel j of
// the block, in float32; `partial`: in shared memory, SUMS floats. The product with `sparse` is added.
template <class Decode, class Sparse = sparse_rows::None>
__device__ __forceinline__ void compute(
    const Problem& problem, const Decode& decode, float* partial, float* __restrict__ y, const Sparse& sparse = {}) {
    const int32_t words = problem.depth / 32 * problem.bits;
    float sums[ROWS][CHANNELS] = {};
#pragma unroll 1
    for (int32_t eight = threadIdx.x; eight < problem.depth / 8; eight += THREADS) {
        float w[CHANNELS][8];
#pragma unroll
        for (int j = 0; j < CHANNELS; ++j) {
            const int32_t* row = problem.packed + int64_t(problem.channel(j)) * words;
            decode(w[j], packed_numbers::load_eight(reinterpret_cast<const uint32_t*>(row), words, eight, problem.bits), j, 8 * eight);
        }
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
            if (problem.first_row + m >= problem.rows) break;
            const float* row = problem.x + int64_t(problem.first_row + m) * problem.depth + 8 * eight;
            float values[8];
            load_eight(values, row);
#pragma unroll
            for (int j = 0; j < CHANNELS; ++j)
#pragma unroll
                for (int i = 0; i < 8; ++i) sums[m][j] += values[i] * w[j][i];
        }
    }
#pragma unroll
    for (int m = 0; m < ROWS; ++m)
#pragma unroll
        for (int j = 0; j < CHANNELS; ++j) {
            const float sum = warp::sum(sums[m][j]);
            if (threadIdx.x % 32 == 0) partial[(threadIdx.x / 32 * ROWS + m) * CHANNELS + j] = sum;
        }
    add_sparse(problem, sparse, partial + threadIdx.x / 32 * ROWS * CHANNELS);
    __syncthreads();
    const int32_t row = problem.first_row + threadIdx.x / CHANNELS, channel = problem.first_channel + threadIdx.x % CHANNELS;
    if (threadIdx.x >= ROWS * CHANNELS || row >= problem.rows || channel >= problem.channels) return;
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) total += partial[warp * ROWS * CHANNELS + threadIdx.x];
    y[int64_t(row) * problem.channels + channel] = total;
}

}  // namespace packed_product_float32
