// Few rows of x, bound by reading the weights: the shape Few of packed_product.cuh.
//
// Each of the eight warps takes every eighth 128 of k. A lane reads the 32 numbers 32t..32t+31 of them, of each of its four
// channels, in one or two loads of 16 bytes, steps before it unpacks them; no shared memory and no barrier is on the way.
// x comes the same way: all blocks of a multiprocessor read the same rows, which stay in its cache.
#pragma once

namespace packed_product {

constexpr int LANES = 4;  // that share the numbers of a channel

// How many steps are on their way: 8 warps with two of 2 KB (4 bits) have 32 KB of a multiprocessor's loads in flight.
template <int BITS>
constexpr int AHEAD = BITS == 8 ? 1 : 2;

// What a lane reads of 128 of k: 32 numbers of its four channels, and what they mean.
template <class Source>
struct Step {
    uint32_t packed[4][Source::bits];
    typename Source::Ahead ahead;
};

// The words of 32 numbers; `aligned`: rows begin at multiples of 16 bytes (with 2 bits: of 8).
template <int BITS>
__device__ __forceinline__ void load_words(uint32_t (&to)[BITS], const uint32_t* from, bool aligned) {
    if (BITS == 3 || !aligned) {
#pragma unroll
        for (int i = 0; i < BITS; ++i) to[i] = __ldg(from + i);
    } else if (BITS == 2) {
        const uint2 both = __ldg(reinterpret_cast<const uint2*>(from));
        to[0] = both.x;
        to[1] = both.y;
    } else {
#pragma unroll
        for (int i = 0; i < BITS / 4; ++i) {
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
__device__ __forceinline__ void multiply_few(Sums<GROUPS>& sums, const Source& source, const Problem& problem) {
    constexpr int BITS = Source::bits, STEPS = AHEAD<BITS>;
    const int32_t chunks = problem.depth / CHUNK, t = threadIdx.x % LANES;
    const int32_t groups = min((problem.rows - problem.first_row + 7) / 8, GROUPS);
    const bool aligned = async_copy::is_aligned(problem.packed);
    int32_t channel[4];
    lane_channels(channel, problem.first_channel, problem.channels);
    const typename Source::Lane weights(source, channel);
    const uint32_t* row[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) row[j] = reinterpret_cast<const uint32_t*>(problem.packed) + int64_t(channel[j]) * chunks * BITS;
    const Rows rows(problem);

    Step<Source> ahead[STEPS];
    const auto read = [&](Step<Source>& to, int32_t step) {
        if (LANES * step >= chunks) return;  // all lanes together
        // The last chunk in place of those beyond, whose x is zero.
        const int32_t chunk = min(LANES * step + t, chunks - 1);
#pragma unroll
        for (int j = 0; j < 4; ++j) load_words(to.packed[j], row[j] + int64_t(chunk) * BITS, aligned);
        source.fetch(to.ahead, weights, chunk);
    };
#pragma unroll
    for (int i = 0; i < STEPS; ++i) read(ahead[i], int32_t(threadIdx.x / 32) + i * WARPS);
#pragma unroll 1
    for (int32_t step = threadIdx.x / 32; LANES * step < chunks; step += WARPS) {
        const Step<Source> now = ahead[0];
#pragma unroll
        for (int i = 1; i < STEPS; ++i) ahead[i - 1] = ahead[i];
        read(ahead[STEPS - 1], step + STEPS * WARPS);
        const int32_t chunk = LANES * step + t;
#pragma unroll
        for (int eight = 0; eight < CHUNK / 8; ++eight) {
            uint4 x[GROUPS];
#pragma unroll
            for (int i = 0; i < GROUPS; ++i)
                if (i < groups) x[i] = rows.load(i, CHUNK * chunk + 8 * eight, chunk < chunks);
            uint32_t w[4][4];
#pragma unroll
            for (int j = 0; j < 4; ++j) Source::decode(w[j], packed_numbers::eight<BITS>(now.packed[j], eight), weights, j, now.ahead);
#pragma unroll
            for (int i = 0; i < GROUPS; ++i)
                if (i < groups) multiply_eight(sums[i], w, x[i]);
        }
    }
}

template <int GROUPS, class Source>
__device__ __forceinline__ void compute_few(const Source& source, const Problem& problem, int8_t* shared, uint16_t* y) {
    Sums<GROUPS> sums = {};
    multiply_few<GROUPS>(sums, source, problem);
    add_parts<WARPS>(sums, shared);
    if (threadIdx.x < 32) store_totals(sums, problem, problem.first_channel, y);
}

}  // namespace packed_product
