// LowRankMatMul: a low-rank change of a product, chosen for each row of a batch, added to y.
//
// A block computes 512 channels of one token. It shrinks the token's x to some of the rank's numbers, one row of `first`
// to a warp at a time, and expands these to its channels; every block of the token does the former, which costs less
// than a second kernel would, as the rank is small.
#include "cuda/half.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int COLUMNS = 512, EACH = COLUMNS / THREADS;  // of a thread
constexpr int RANKS = 64;                               // at a time

struct Sizes {
    int32_t adapters, rank, batch, tokens, depth, width, first_bytes, second_bytes;
};

template <class Float>
__device__ __forceinline__ void low_rank_matmul(float* hidden, const Float* __restrict__ x, const void* first, const void* second,
                                                const float* own_factor, const int32_t* adapter, const float* scale, const Float* __restrict__ y,
                                                const Sizes& sizes, Float* __restrict__ sum) {
    if (int32_t(blockIdx.y) >= sizes.tokens || int32_t(blockIdx.z) >= sizes.batch) return;
    const int64_t row = int64_t(blockIdx.z) * sizes.tokens + blockIdx.y, own = adapter[blockIdx.z];
    const bool exists = own >= 0 && own < sizes.adapters;  // memory is not read where there is none
    const float factor = exists ? scale[blockIdx.z] * own_factor[own] : 0;
    const int32_t begin = int32_t(blockIdx.x) * COLUMNS, lane = threadIdx.x % 32;
    float total[EACH] = {};
    for (int32_t chunk = 0; exists && chunk < sizes.rank; chunk += RANKS) {
        const int32_t count = min(sizes.rank - chunk, RANKS);
        const int64_t start = own * sizes.rank + chunk;
        for (int32_t r = int32_t(threadIdx.x) / 32; r < count; r += WARPS) {
            float dot = 0;
            for (int32_t k = lane; k < sizes.depth; k += 32) {
                dot += half::number(x[row * sizes.depth + k]) * half::element(first, sizes.first_bytes, (start + r) * sizes.depth + k);
            }
            dot = warp::sum(dot);
            if (lane == 0) hidden[r] = dot * factor;
        }
        __syncthreads();
        for (int i = 0; i < EACH; ++i) {
            const int32_t n = begin + i * THREADS + int32_t(threadIdx.x);
            if (n >= sizes.width) break;
            for (int32_t r = 0; r < count; ++r) {
                total[i] += hidden[r] * half::element(second, sizes.second_bytes, (start + r) * sizes.width + n);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < EACH; ++i) {
        const int32_t n = begin + i * THREADS + int32_t(threadIdx.x);
        if (n >= sizes.width) break;
        const int64_t at = row * sizes.width + n;
        half::store(sum + at, half::number(y[at]) + total[i]);
    }
}

}  // namespace

// x: [batch, tokens, depth]; first: [adapters, rank, depth] and second: [adapters, rank, width], of float16 or float32, by their
// bytes; factor: [adapters]; adapter: [batch]; scale: [batch]; y, sum: [batch, tokens, width], of x's dtype. Grid: width / 512 rounded up, tokens, batch.
extern "C" __global__ void __launch_bounds__(THREADS) low_rank_matmul_float16(
    const uint16_t* x, const void* first, const void* second, const float* factor, const int32_t* adapter, const float* scale, const uint16_t* y,
    int32_t adapters, int32_t rank, int32_t batch, int32_t tokens, int32_t depth, int32_t width, int32_t first_bytes,
    int32_t second_bytes, uint16_t* sum) {
    __shared__ float hidden[RANKS];
    low_rank_matmul(hidden, x, first, second, factor, adapter, scale, y, {adapters, rank, batch, tokens, depth, width, first_bytes, second_bytes}, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) low_rank_matmul_float32(
    const float* x, const void* first, const void* second, const float* factor, const int32_t* adapter, const float* scale, const float* y,
    int32_t adapters, int32_t rank, int32_t batch, int32_t tokens, int32_t depth, int32_t width, int32_t first_bytes,
    int32_t second_bytes, float* sum) {
    __shared__ float hidden[RANKS];
    low_rank_matmul(hidden, x, first, second, factor, adapter, scale, y, {adapters, rank, batch, tokens, depth, width, first_bytes, second_bytes}, sum);
}
