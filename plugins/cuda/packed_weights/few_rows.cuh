// Few rows of x, bound by reading the weights: the shape Few of product.cuh.
//
// Each of the four warps takes every fourth 128 of k. A lane reads the 32 numbers 32t..32t+31 of them, of both of its
// channels, in one or two loads of 16 bytes, one step before it unpacks them; no shared memory and no barrier is on the way.
// x comes the same way: all blocks of a multiprocessor read the same rows, which stay in its cache. Up to 8 rows are read
// a step early too, as there is little else to do while they come; registers have no room for more.
#pragma once

namespace packed_product {

constexpr int LANES = 4;           // that share the numbers of a channel
constexpr int EIGHTS = CHUNK / 8;  // of a lane's 32 numbers

// What a lane reads of 128 of k: 32 numbers of its two channels, what they mean, and x if it is read early.
template <class Source>
struct Step {
    uint32_t packed[2][Source::bits];
    typename Source::template Ahead<2> ahead;
    uint4 x[EIGHTS];
};

// Words that lie side by side, 2, 3, or a multiple of 4; `aligned`: their length is what their address is a multiple of,
// or 16 bytes.
template <int COUNT>
__device__ __forceinline__ void load_words(uint32_t (&to)[COUNT], const uint32_t* from, bool aligned) {
    if (COUNT == 3 || !aligned) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) to[i] = __ldg(from + i);
    } else if (COUNT == 2) {
        const uint2 both = __ldg(reinterpret_cast<const uint2*>(from));
        to[0] = both.x;
        to[1] = both.y;
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

// A lane's part of an eight of x's rows; rows beyond the last give what nobody uses.
struct Rows {
    const int8_t* x;
    int64_t pitch;
    int32_t first, last;
    bool aligned;

    __device__ __forceinline__ explicit Rows(const Problem& problem)
        : x(reinterpret_cast<const int8_t*>(problem.x)), pitch(int64_t(problem.depth) * 2),
          first(problem.first_row + int32_t(threadIdx.x % 32 / LANES)), last(problem.rows - 1),
          aligned(async_copy::is_aligned(problem.x)) {}

    // Eight numbers from column k on of the row 8·group + g; zeros unless `exist`.
    __device__ __forceinline__ uint4 load(int group, int32_t k, bool exist) const {
        const int8_t* from = x + min(first + 8 * group, last) * pitch + 2 * int64_t(k);
        if (!exist) return make_uint4(0, 0, 0, 0);
        return aligned ? __ldg(reinterpret_cast<const uint4*>(from)) : async_copy::load_bytes(from, 16);
    }
};

template <int GROUPS, class Source>
__device__ __forceinline__ void multiply_few(Sums<GROUPS, 1>& sums, const Source& source, const Problem& problem) {
    constexpr int BITS = Source::bits;
    constexpr bool EARLY = GROUPS == 1;
    const int32_t chunks = problem.depth / CHUNK, t = threadIdx.x % LANES;
    const int32_t groups = min((problem.rows - problem.first_row + 7) / 8, GROUPS);
    const bool aligned = async_copy::is_aligned(problem.packed);
    int32_t channel[2];
    lane_channels(channel, problem.first_channel, problem.channels);
    const uint32_t* row[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) row[j] = reinterpret_cast<const uint32_t*>(problem.packed) + int64_t(channel[j]) * chunks * BITS;
    const Rows rows(problem);
    const auto load_x = [&](int32_t chunk, int eight, int group) {
        return rows.load(group, CHUNK * chunk + 8 * eight, chunk < chunks);
    };
    Step<Source> next;
    // The last chunk in place of those beyond, whose x is zero.
    const auto last = [&](int32_t step) { return min(LANES * step + t, chunks - 1); };
    const auto read = [&](int32_t step) {
        if (LANES * step >= chunks) return;  // all lanes together
#pragma unroll
        for (int j = 0; j < 2; ++j) load_words(next.packed[j], row[j] + int64_t(last(step)) * BITS, aligned);
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight)
            if (EARLY) next.x[eight] = load_x(LANES * step + t, eight, 0);
    };
    const int32_t first = threadIdx.x / 32;
    if (chunks == 0) return;
    read(first);
    const typename Source::template Lane<2> weights(source, channel);
    source.fetch(next.ahead, weights, last(first));
#pragma unroll 1
    for (int32_t step = first; LANES * step < chunks; step += WARPS) {
        const Step<Source> now = next;
        read(step + WARPS);
        source.fetch(next.ahead, weights, last(step + WARPS));
#pragma unroll
        for (int eight = 0; eight < EIGHTS; ++eight) {
            uint4 x[GROUPS];
#pragma unroll
            for (int i = 0; i < GROUPS; ++i)
                if (i < groups) x[i] = EARLY ? now.x[eight] : load_x(LANES * step + t, eight, i);
            uint32_t w[2][4];
#pragma unroll
            for (int j = 0; j < 2; ++j) Source::decode(w[j], packed_numbers::eight<BITS>(now.packed[j], eight), weights, j, now.ahead);
#pragma unroll
            for (int i = 0; i < GROUPS; ++i)
                if (i < groups) multiply_eight(sums[i], w, x[i]);
        }
    }
}

// Adds the sums of the four warps, always in the same order: the first one then holds the totals.
template <int GROUPS>
__device__ __forceinline__ void add_warps(Sums<GROUPS, 1>& sums, int8_t* shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float* others = reinterpret_cast<float*>(shared);  // [sum, warp, lane]
#pragma unroll
    for (int half = WARPS / 2; half > 0; half /= 2) {
        float* mine = others + warp % half * 32 + lane;
        __syncthreads();
        if (warp >= half && warp < 2 * half) {
#pragma unroll
            for (int i = 0; i < 4 * GROUPS; ++i) mine[i * half * 32] = sums[i / 4][0][i % 4];
        }
        __syncthreads();
        if (warp < half) {
#pragma unroll
            for (int i = 0; i < 4 * GROUPS; ++i) sums[i / 4][0][i % 4] += mine[i * half * 32];
        }
    }
}

template <int GROUPS, class Source>
__device__ __forceinline__ void compute_few(const Source& source, const Problem& problem, int8_t* shared, uint16_t* y) {
    Sums<GROUPS, 1> sums = {};
    multiply_few<GROUPS>(sums, source, problem);
    add_warps(sums, shared);
    if (threadIdx.x < 32) store_sums(sums, problem, problem.first_channel, y);
}

}  // namespace packed_product
