// y = x·wᵀ of float16 x and a weight of 2, 3, 4 or 8 bits, on the matrix unit, with float32 sums.
//
// A warp computes 32 channels of 8 or more rows of x: the weight is the matrix unit's A, x its B. A lane, g = lane / 4 and
// t = lane % 4, unpacks the numbers 8t..8t+7 of each 32 of the channels 4g..4g+3, straight into fragments in registers:
// the order of k within a product is free, and so those 8 are two steps' columns 2t, 2t+1, 2t+8, 2t+9, and x's fragments
// of both steps are 16 bytes of one row. Channels 4g, 4g+1 are the rows g, g+8 of one tile, 4g+2, 4g+3 of another: each
// lane's sums are four channels that lie side by side.
//
// Two shapes of a block, one of them for each number of rows (see packed_product.py):
//   Narrow  32 channels, 8 rows of x; the four warps take different k, and their sums are added in the warps' order.
//           It is bound by reading the weights: up to four stages of them are on their way at any time.
//   Wide    128 channels, 64 rows of x; the warps stand side by side, and each unpacked weight is multiplied 64 times.
// Stages lie in shared memory: channels of packed numbers in the order 4g + j at place 8j + g, PITCH bytes apart, an odd
// multiple of 16 (with 8 bits: of 32), and rows of x whose chunks of 16 bytes c lie at c ^ 4·(row % 2): no lanes meet in a
// bank.
//
// A `Source` says what numbers mean: `bits`; `Lane`, what a lane holds of its four channels; `Ahead<n>`, what has to be
// read for n times 32 numbers, which `fetch` begins one stage early, a queue; `decode`, eight numbers to eight float16.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/half.cuh"
#include "cuda/matrix_unit.cuh"
#include "cuda/packed_numbers.cuh"

namespace packed_product {

constexpr int THREADS = 128, WARPS = 4;
constexpr int CHUNK = 32;         // numbers that the four lanes of a channel unpack together
constexpr int FEW = 16;           // rows of x up to which blocks are narrow
constexpr int BLOCKS = 2;         // of a multiprocessor: a launch bound, else the compiler saves registers for a third
constexpr int LIMIT = 48 << 10;   // bytes of shared memory that a kernel may have without asking the driver

template <int BITS, int CHANNELS_, int ROWS_, int LENGTH_>
struct Shape {
    static constexpr int CHANNELS = CHANNELS_, ROWS = ROWS_;
    static constexpr int LENGTH = (BITS == 3 ? 2 : 1) * LENGTH_;  // numbers of a row in a stage: whole chunks of 16 bytes
    static constexpr bool SPLIT = CHANNELS == 32;
    static constexpr int CHUNKS = LENGTH / CHUNK, WARP_CHUNKS = SPLIT ? CHUNKS / WARPS : CHUNKS;
    static constexpr int PACKED_BYTES = LENGTH * BITS / 8, UNIT = BITS == 8 ? 32 : 16;
    static constexpr int PITCH = PACKED_BYTES + (PACKED_BYTES / UNIT % 2 ? 0 : UNIT);
    static constexpr int X_BYTES = 2 * LENGTH;
    static constexpr int X_START = CHANNELS * PITCH, STAGE_BYTES = X_START + ROWS * X_BYTES;
#if __CUDA_ARCH__ >= 800
    static constexpr int STAGES = LIMIT / STAGE_BYTES < 5 ? LIMIT / STAGE_BYTES : 5;
#else
    static constexpr int STAGES = 2;  // the copies wait in registers, so more would not help
#endif
    static constexpr int BYTES = STAGES * STAGE_BYTES;
    static_assert(STAGES >= 2 && BYTES <= LIMIT, "stages fit");
};
template <int BITS>
using Narrow = Shape<BITS, 32, 8, 256>;
template <int BITS>
using Wide = Shape<BITS, 128, 64, 64>;

// A block has the shared memory of its shape, not of the larger one: on a T4 two narrow blocks then fit a multiprocessor
// at 3 and 8 bits. `shared_bytes` of packed_product.py computes it again.
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

// sum[i][m][e] of a lane: row of x 8i + 2t + e%2, channel 4g + 2m + e/2.
template <class Shape>
using Sums = float[Shape::ROWS / 8][2][4];

template <class Shape>
struct PlacePacked {
    __device__ __forceinline__ int operator()(int channel, int column) const {
        return (channel / 32 * 32 + channel % 4 * 8 + channel % 32 / 4) * Shape::PITCH + column;
    }
};
template <class Shape>
struct PlaceX {
    __device__ __forceinline__ int operator()(int row, int column) const { return row * Shape::X_BYTES + (column ^ (row % 2 * 64)); }
};

// The packed numbers and the rows of x from `first` on, on their way to a stage.
template <class Shape, int BITS>
struct Copies {
    async_copy::TileCopy<Shape::CHANNELS, Shape::PACKED_BYTES, THREADS, 4> packed;
    async_copy::TileCopy<Shape::ROWS, Shape::X_BYTES, THREADS> x;

    __device__ __forceinline__ void start(const Problem& problem, int32_t first, int8_t* stage) {
        const int64_t packed_pitch = int64_t(problem.depth) / 8 * BITS, x_pitch = int64_t(problem.depth) * 2;
        const int8_t* from_packed =
            reinterpret_cast<const int8_t*>(problem.packed) + problem.first_channel * packed_pitch + int64_t(first) / 8 * BITS;
        const int8_t* from_x = reinterpret_cast<const int8_t*>(problem.x) + problem.first_row * x_pitch + int64_t(first) * 2;
        const int32_t left = problem.depth - first;
        packed.start(stage, from_packed, packed_pitch, problem.channels - problem.first_channel, min(left, Shape::LENGTH) / 8 * BITS,
                     (BITS % 4 == 0 || packed_pitch % 16 == 0) && async_copy::is_aligned(problem.packed), PlacePacked<Shape>());
        x.start(stage + Shape::X_START, from_x, x_pitch, problem.rows - problem.first_row, min(left, Shape::LENGTH) * 2,
                async_copy::is_aligned(problem.x), PlaceX<Shape>());
    }
    __device__ __forceinline__ void finish() {
        packed.finish();
        x.finish();
    }
};

// The first of a stage's chunks that this warp takes.
template <class Shape>
__device__ __forceinline__ int first_chunk() {
    return Shape::SPLIT ? threadIdx.x / 32 * Shape::WARP_CHUNKS : 0;
}

// Adds the products of one stage, of which `left` chunks exist, to the sums.
template <class Source, class Shape>
__device__ __forceinline__ void multiply_stage(
    Sums<Shape>& sums, const typename Source::Lane& weights, typename Source::template Ahead<Shape::WARP_CHUNKS>& ahead,
    const int8_t* stage, int32_t left) {
    constexpr int CHUNK_BYTES = CHUNK * Source::bits / 8;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = first_chunk<Shape>();
    const int8_t* packed = stage + ((Shape::SPLIT ? 0 : threadIdx.x / 32 * 32) + g) * Shape::PITCH + first * CHUNK_BYTES;
    const int8_t* x = stage + Shape::X_START + g * Shape::X_BYTES;
#pragma unroll Shape::SPLIT ? Shape::WARP_CHUNKS : 1
    for (int chunk = 0; chunk < Shape::WARP_CHUNKS; ++chunk) {
        if (first + chunk >= left) break;  // all lanes together
        uint32_t w[4][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint2 numbers = packed_numbers::load_eight<Source::bits>(packed + 8 * j * Shape::PITCH + chunk * CHUNK_BYTES, t);
            Source::decode(w[j], numbers, weights, j, ahead);
        }
        ahead.advance();
        const int column = (64 * (first + chunk) + 16 * t) ^ (g % 2 * 64);
#pragma unroll
        for (int i = 0; i < Shape::ROWS / 8; ++i) {
            const uint4 eight = *reinterpret_cast<const uint4*>(x + 8 * i * Shape::X_BYTES + column);
            const uint32_t b[2][2] = {{eight.x, eight.y}, {eight.z, eight.w}};
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int step = 0; step < 2; ++step) {
                    const uint32_t *even = w[2 * m] + 2 * step, *odd = w[2 * m + 1] + 2 * step;
                    const uint32_t a[4] = {even[0], odd[0], even[1], odd[1]};
                    matrix_unit::multiply_accumulate(sums[i][m], a, b[step]);
                }
        }
    }
}

// The sums of this block; rows of x and channels beyond the last count as zeros, and nothing beyond is read.
template <class Source, class Shape>
__device__ __forceinline__ void multiply(Sums<Shape>& sums, const Source& source, const Problem& problem, int8_t* shared) {
    const int32_t tiles = (problem.depth + Shape::LENGTH - 1) / Shape::LENGTH, chunks = problem.depth / CHUNK;
    if (tiles == 0) return;
    int32_t channel[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int32_t warp_channel = problem.first_channel + (Shape::SPLIT ? 0 : threadIdx.x / 32 * 32);
        channel[j] = min(warp_channel + int32_t(threadIdx.x % 32 / 4 * 4) + j, problem.channels - 1);
    }
    Copies<Shape, Source::bits> copies;
#pragma unroll 1
    for (int stage = 0; stage < Shape::STAGES - 1; ++stage) {
        if (stage < tiles) {
            copies.start(problem, stage * Shape::LENGTH, shared + stage * Shape::STAGE_BYTES);
            copies.finish();
        }
        async_copy::commit();
    }
    const typename Source::Lane weights(source, channel);
    typename Source::template Ahead<Shape::WARP_CHUNKS> ahead, next_ahead;
    source.fetch(next_ahead, weights, first_chunk<Shape>(), chunks);
#pragma unroll 1
    for (int32_t tile = 0; tile < tiles; ++tile) {
        async_copy::wait<Shape::STAGES - 2>();
        __syncthreads();  // this tile is there for all, and all have left the stage that is filled next
        const int32_t next = tile + Shape::STAGES - 1;
        if (next < tiles) copies.start(problem, next * Shape::LENGTH, shared + next % Shape::STAGES * Shape::STAGE_BYTES);
        ahead = next_ahead;
        source.fetch(next_ahead, weights, (tile + 1) * Shape::CHUNKS + first_chunk<Shape>(), chunks);
        const int8_t* stage = shared + tile % Shape::STAGES * Shape::STAGE_BYTES;
        multiply_stage<Source, Shape>(sums, weights, ahead, stage, chunks - tile * Shape::CHUNKS);
        if (next < tiles) copies.finish();
        async_copy::commit();
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

// Adds the four warps' sums of the same rows and channels, always in the same order, and writes them to y.
template <class Shape>
__device__ __forceinline__ void store_split(const Sums<Shape>& sums, const Problem& problem, int8_t* shared, uint16_t* __restrict__ y) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    float* partial = reinterpret_cast<float*>(shared);  // [warp, row, channel]
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int e = 0; e < 4; ++e) partial[(warp * 8 + 2 * t + e % 2) * 32 + 4 * g + 2 * m + e / 2] = sums[0][m][e];
    __syncthreads();
    const int row = threadIdx.x / 16, channel = threadIdx.x % 16 * 2;
    if (problem.first_row + row >= problem.rows) return;
    float total[2] = {0, 0};
#pragma unroll
    for (int other = 0; other < WARPS; ++other)
#pragma unroll
        for (int i = 0; i < 2; ++i) total[i] += partial[(other * 8 + row) * 32 + channel + i];
    const int64_t at = int64_t(problem.first_row + row) * problem.channels + problem.first_channel + channel;
    store(y + at, total, problem.channels - problem.first_channel - channel, problem.channels % 2 == 0);
}

template <class Shape>
__device__ __forceinline__ void store_beside(const Sums<Shape>& sums, const Problem& problem, uint16_t* __restrict__ y) {
    const int lane = threadIdx.x % 32;
    const int32_t channel = problem.first_channel + threadIdx.x / 32 * 32 + lane / 4 * 4;
#pragma unroll
    for (int i = 0; i < Shape::ROWS / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int32_t row = problem.first_row + 8 * i + 2 * (lane % 4) + e;
            if (row >= problem.rows) continue;
            const float values[4] = {sums[i][0][e], sums[i][0][e + 2], sums[i][1][e], sums[i][1][e + 2]};
            store(y + int64_t(row) * problem.channels + channel, values, problem.channels - channel, problem.channels % 2 == 0);
        }
}

// y: float16 [rows, channels]. Blocks beyond the last have nothing to do: the grid fits either shape.
template <class Source>
__device__ __forceinline__ void compute(
    const Source& source, const uint16_t* x, const int32_t* packed, int32_t rows, int32_t depth, int32_t channels,
    int8_t* shared, uint16_t* y) {
    using Few = Narrow<Source::bits>;
    using Many = Wide<Source::bits>;
    const int32_t each = rows <= FEW ? Few::ROWS : Many::ROWS, side = rows <= FEW ? Few::CHANNELS : Many::CHANNELS;
    const int32_t groups = (rows + each - 1) / each;
    if (groups == 0) return;
    // Blocks of the same channels follow each other: the first of them brings the weights to the cache.
    const int32_t group = int32_t(blockIdx.x) % groups, tile = int32_t(blockIdx.x) / groups;
    const Problem problem = {x, packed, rows, depth, channels, group * each, tile * side};
    if (problem.first_channel >= channels) return;
    if (rows <= FEW) {
        Sums<Few> sums = {};
        multiply<Source, Few>(sums, source, problem, shared);
        store_split<Few>(sums, problem, shared, y);
    } else {
        Sums<Many> sums = {};
        multiply<Source, Many>(sums, source, problem, shared);
        store_beside<Many>(sums, problem, y);
    }
}

}  // namespace packed_product
