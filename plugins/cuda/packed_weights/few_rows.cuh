// Few rows of x, bound by reading the weights: the shape Few of product.cuh.
//
// The warps take 128 of k in turn. A lane reads the 32 numbers 32t..32t+31 of them, of both of its channels, in one or two
// loads of 16 bytes, one step before it unpacks them; no shared memory and no barrier is on the way. x comes the same way:
// all blocks of a multiprocessor read the same rows, which stay in its cache. Half of the time goes into unpacking, so that
// every instruction beside it counts: addresses are kept in registers, two steps are written out so that no register has to
// move, and nothing asks whether something exists: depth is a multiple of 128, or the shape is Many.
#pragma once

namespace packed_product {

constexpr int LANES = 4;             // that share the numbers of a channel
constexpr int EIGHTS = CHUNK / 8;    // of a lane's 32 numbers
constexpr int STEP = LANES * CHUNK;  // numbers of a channel

// Words that lie side by side: an odd number, one that is twice odd, or a multiple of 4. ALIGNED: their address is a multiple of their length, or of 16
// bytes.
template <bool ALIGNED, int COUNT>
__device__ __forceinline__ void load_words(uint32_t (&to)[COUNT], const uint32_t* from) {
    if (COUNT % 2 || !ALIGNED) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) to[i] = __ldg(from + i);
    } else if (COUNT % 4 == 2) {
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const uint2 both = __ldg(reinterpret_cast<const uint2*>(from) + i);
            to[2 * i] = both.x;
            to[2 * i + 1] = both.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT / 4; ++i) {
            const uint4 four = __ldg(reinterpret_cast<const uint4*>(from) + i);
            to[4 * i] = four.x;
            to[4 * i + 1] = four.y;
            to[4 * i + 2] = four.z;
            to[4 * i + 3] = four.w;
        }
    }
}

// What a lane reads of a step ahead: 32 numbers of both channels, and what they mean; x's too where there are registers for
// it, else x is read an eight ahead.
template <int GROUPS, class Source>
struct Step {
    static constexpr bool HAS_X = GROUPS == 1;
    uint32_t packed[2][Source::bits];
    typename Source::Ahead ahead;
    uint4 x[HAS_X ? EIGHTS : 1];
};

template <int GROUPS, bool ALIGNED, class Source>
__device__ __forceinline__ void multiply_few(Sums<GROUPS>& sums, const Source& source, const Problem& problem) {
    using Ahead = Step<GROUPS, Source>;
    constexpr int BITS = Source::bits, STRIDE = WARPS * STEP;  // numbers of a channel from a warp's step to its next
    constexpr int HERE = -STRIDE / 8;                          // eights from x of the next step to that of this one
    const int32_t steps = problem.depth / STEP, t = threadIdx.x % LANES, first = threadIdx.x / 32;
    const int32_t groups = (problem.rows - problem.first_row + 7) / 8;
    if (first >= steps) return;
    int32_t channel[2];
    lane_channels(channel, problem.first_channel, problem.channels);
    const uint32_t* packed[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int64_t step = int64_t(channel[j]) * steps + first;
        packed[j] = reinterpret_cast<const uint32_t*>(problem.packed) + (LANES * step + t) * BITS;
    }
    const uint4* x[GROUPS];  // of the last row in place of those beyond, whose sums nobody uses
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
        const int32_t row = min(problem.first_row + 8 * i + int32_t(threadIdx.x % 32 / LANES), problem.rows - 1);
        x[i] = reinterpret_cast<const uint4*>(problem.x + int64_t(row) * problem.depth + STEP * first + CHUNK * t);
    }
    const auto exists = [&](int i) { return i == 0 || i < groups; };
    const auto load_x = [&](int i, int eight) {
        return ALIGNED ? __ldg(x[i] + eight) : async_copy::load_bytes(reinterpret_cast<const int8_t*>(x[i] + eight), 16);
    };
    uint4 eights[2][GROUPS];  // this one and the next
    const auto read_eight = [&](int eight, int from) {
#pragma unroll
        for (int i = 0; i < GROUPS; ++i)
            if (exists(i)) eights[eight % 2][i] = load_x(i, from + eight);
    };
    const typename Source::Lane weights(source, channel);
    const auto read = [&](Ahead& to, int32_t step) {
#pragma unroll
        for (int j = 0; j < 2; ++j) load_words<ALIGNED>(to.packed[j], packed[j]);
        source.fetch(to.ahead, weights, LANES * step + t);
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight)
            if (Ahead::HAS_X) to.x[Ahead::HAS_X ? eight : 0] = load_x(0, eight);
    };
    // Multiplies a step, and begins to read the warp's next one.
    const auto multiply = [&](Ahead& now, Ahead& next, int32_t step) {
        const bool more = step + WARPS < steps;
#pragma unroll
        for (int j = 0; j < 2; ++j) packed[j] += STRIDE / 32 * BITS;
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) x[i] += STRIDE / 8;
        if (more) read(next, step + WARPS);
        const typename Source::Ready ready = source.arrive(now.ahead);
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight) {
            if (!Ahead::HAS_X && eight + 1 < EIGHTS) read_eight(eight + 1, HERE);
            if (!Ahead::HAS_X && eight + 1 == EIGHTS && more) read_eight(0, 0);
            uint32_t w[2][4];
#pragma unroll
            for (int j = 0; j < 2; ++j) source.decode(w[j], packed_numbers::eight<BITS>(now.packed[j], eight), weights, j, ready);
#pragma unroll
            for (int i = 0; i < GROUPS; ++i)
                if (exists(i)) multiply_eight(sums[i], w, Ahead::HAS_X ? now.x[Ahead::HAS_X ? eight : 0] : eights[eight % 2][i]);
        }
    };
    Ahead one, other;
    read(one, first);
    if (!Ahead::HAS_X) read_eight(0, 0);
#pragma unroll 1
    for (int32_t step = first; step < steps; step += 2 * WARPS) {
        multiply(one, other, step);
        if (step + WARPS < steps) multiply(other, one, step + WARPS);
    }
}

// Adds the products with the sparse matrix to sums of this warp in shared memory: [row, channel], of which `rows` rows exist.
template <int GROUPS>
__device__ __forceinline__ void add_sparse(
    const Problem& problem, const sparse_rows::Matrix& sparse, int32_t rows, float* sums, int pitch) {
    const uint16_t* x = problem.x + int64_t(problem.first_row) * problem.depth;
    const auto add = [&](int row, int channel, float product) { sums[row * pitch + channel] += product; };
    __syncwarp();  // all lanes have written the warp's sums
    if (rows == 1) sparse_rows::multiply_pieces<WARPS, TILE, 1>(sparse, problem.first_channel, problem.channels, x, problem.depth, rows, add);
    else if (GROUPS == 1) sparse_rows::multiply_pieces<WARPS, TILE, 8>(sparse, problem.first_channel, problem.channels, x, problem.depth, rows, add);
    else sparse_rows::multiply_rows<WARPS, TILE, GROUPS>(sparse, problem.first_channel, problem.channels, x, problem.depth, rows, add);
}
template <int GROUPS>
__device__ __forceinline__ void add_sparse(const Problem&, const sparse_rows::None&, int32_t, float*, int) {}

// Adds the products with the sparse matrix to the sums of the warps, these to each other, always in the same order, and writes them.
template <int GROUPS, class Sparse>
__device__ __forceinline__ void add_warps(
    const Sums<GROUPS>& sums, const Problem& problem, const Sparse& sparse, int8_t* shared, uint16_t* __restrict__ y) {
    constexpr int PITCH = TILE + 4, SIZE = 8 * GROUPS * PITCH;  // so that the lanes of half a warp meet in no bank
    float* all = reinterpret_cast<float*>(shared);              // [warp, row, channel]
    const int lane = threadIdx.x % 32;
    float* mine = all + threadIdx.x / 32 * SIZE + lane % 4 * 2 * PITCH + lane / 4 * 2;
#pragma unroll
    for (int i = 0; i < GROUPS; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e)
            *reinterpret_cast<float2*>(mine + (8 * i + e) * PITCH) = make_float2(sums[i][e], sums[i][e + 2]);
    const int32_t rows = min(problem.rows - problem.first_row, 8 * GROUPS);
    add_sparse<GROUPS>(problem, sparse, rows, all + threadIdx.x / 32 * SIZE, PITCH);
    __syncthreads();
#pragma unroll 1
    for (int32_t pair = threadIdx.x; pair < rows * (TILE / 2); pair += THREADS) {
        const int32_t row = pair / (TILE / 2), column = pair % (TILE / 2) * 2, channel = problem.first_channel + column;
        float even = 0, odd = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) {
            const float2 two = *reinterpret_cast<const float2*>(all + warp * SIZE + row * PITCH + column);
            even += two.x;
            odd += two.y;
        }
        uint16_t* to = y + int64_t(problem.first_row + row) * problem.channels + channel;
        store_pair(to, even, odd, problem.channels - channel, problem.channels % 2 == 0);
    }
}

template <int GROUPS, bool ALIGNED, class Source, class Sparse>
__device__ __forceinline__ void compute_few(
    const Source& source, const Problem& problem, const Sparse& sparse, int8_t* shared, uint16_t* y) {
    Sums<GROUPS> sums = {};
    multiply_few<GROUPS, ALIGNED>(sums, source, problem);
    add_warps(sums, problem, sparse, shared, y);
}

// 8·GROUPS rows after another, up to FEW_ROWS.
template <int GROUPS, bool ALIGNED, class Source, class Sparse>
__device__ __forceinline__ void compute_in_turn(
    const Source& source, Problem problem, const Sparse& sparse, int8_t* shared, uint16_t* y) {
#pragma unroll 1
    for (int row = 0; row < FEW_ROWS && problem.first_row < problem.rows; row += 8 * GROUPS, problem.first_row += 8 * GROUPS) {
        compute_few<GROUPS, ALIGNED>(source, problem, sparse, shared, y);
        __syncthreads();  // all have read the sums
    }
}

}  // namespace packed_product
