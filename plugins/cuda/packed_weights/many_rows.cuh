// Many rows of x, bound by multiplying them: the shape Many of product.cuh.
//
// Stages of k lie in shared memory: channels of packed numbers in the order 2g + j at place 8j + g, PITCH bytes apart, an
// odd multiple of 16 (with 8 bits: of 32), and rows of x whose chunks of 16 bytes c lie at c ^ 4·(row % 2): no lanes meet in
// a bank.
#pragma once

namespace packed_product {

constexpr int LIMIT = 48 << 10;  // bytes of shared memory that a kernel may have without asking the driver

// `many_bytes` of geometry.py computes it again.
template <int BITS>
struct Stage {
    static constexpr int LENGTH = (BITS == 3 ? 2 : 1) * 64;  // numbers of a row: whole chunks of 16 bytes, but of 5 bits 2.5
    static constexpr int CHUNKS = LENGTH / CHUNK;
    static constexpr int PART = 2;  // chunks, of which what the numbers mean is read at once
    static constexpr int PACKED_BYTES = (LENGTH * BITS / 8 + 15) / 16 * 16, UNIT = BITS == 8 ? 32 : 16;
    static constexpr bool IN_CHUNKS = LENGTH * BITS % 128 == 0;  // else stages begin between chunks, and words are copied
    static constexpr int PITCH = PACKED_BYTES + (PACKED_BYTES / UNIT % 2 ? 0 : UNIT);
    static constexpr int X_BYTES = 2 * LENGTH;
    static constexpr int X_START = MANY_CHANNELS * PITCH, BYTES = X_START + MANY_ROWS * X_BYTES;
#if __CUDA_ARCH__ >= 800
    static constexpr int COUNT = LIMIT / BYTES < 5 ? LIMIT / BYTES : 5;
#else
    static constexpr int COUNT = 2;  // the copies wait in registers, so more would not help
#endif
    static_assert(COUNT >= 2 && COUNT * BYTES <= LIMIT, "stages fit");
};

template <int BITS>
struct PlacePacked {
    __device__ __forceinline__ int operator()(int channel, int column) const {
        return (channel / TILE * TILE + channel % 2 * 8 + channel % TILE / 2) * Stage<BITS>::PITCH + column;
    }
};
template <int BITS>
struct PlaceX {
    __device__ __forceinline__ int operator()(int row, int column) const { return row * Stage<BITS>::X_BYTES + (column ^ (row % 2 * 64)); }
};

// The packed numbers and the rows of x from `first` on, on their way to a stage.
template <int BITS>
struct Copies {
    using Shape = Stage<BITS>;
    async_copy::TileCopy<MANY_CHANNELS, Shape::PACKED_BYTES, THREADS, 4> packed;

    __device__ __forceinline__ void start(const Problem& problem, int32_t first, int8_t* stage) {
        const int64_t packed_pitch = int64_t(problem.depth) / 8 * BITS, x_pitch = int64_t(problem.depth) * 2;
        const int8_t* from_packed =
            reinterpret_cast<const int8_t*>(problem.packed) + problem.first_channel * packed_pitch + int64_t(first) / 8 * BITS;
        const int8_t* from_x = reinterpret_cast<const int8_t*>(problem.x) + problem.first_row * x_pitch + int64_t(first) * 2;
        const int32_t left = problem.depth - first;
        packed.start(stage, from_packed, packed_pitch, problem.channels - problem.first_channel, min(left, Shape::LENGTH) / 8 * BITS,
                     is_aligned(problem), PlacePacked<BITS>());
        async_copy::TileCopy<MANY_ROWS, Shape::X_BYTES, THREADS> x;
        x.start(stage + Shape::X_START, from_x, x_pitch, problem.rows - problem.first_row, min(left, Shape::LENGTH) * 2,
                async_copy::is_aligned(problem.x), PlaceX<BITS>());
        x.finish();  // a T4 has no registers for x to wait in
    }
    __device__ __forceinline__ void finish(const Problem& problem) {
        packed.aligned = is_aligned(problem);  // asked again, so that no register keeps it
        packed.finish();
    }
    // Whether the packed numbers of a stage are whole chunks of 16 bytes.
    __device__ __forceinline__ static bool is_aligned(const Problem& problem) {
        const bool rows = BITS % 4 == 0 || int64_t(problem.depth) / 8 * BITS % 16 == 0;
        return Shape::IN_CHUNKS && rows && async_copy::is_aligned(problem.packed);
    }
};

// Where this warp's channels begin among the block's.
__device__ __forceinline__ int warp_channel() { return threadIdx.x / 32 * TILE; }

// Adds the products of a part of a stage, of whose chunks from `first` on `left` exist, to the sums; `ready` is used up.
template <class Source>
__device__ __forceinline__ void multiply_part(
    Sums<MANY_ROWS / 8>& sums, const Source& source, const typename Source::Lane& weights,
    typename Source::Ready (&ready)[Stage<Source::bits>::PART], const int8_t* stage, int32_t first, int32_t left) {
    constexpr int BITS = Source::bits, CHUNK_BYTES = CHUNK * BITS / 8;
    using Shape = Stage<BITS>;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int8_t* packed = stage + (warp_channel() + g) * Shape::PITCH;
    const int8_t* x = stage + Shape::X_START + g * Shape::X_BYTES;
#pragma unroll 1
    for (int chunk = first; chunk < first + Shape::PART; ++chunk) {
        if (chunk - first >= left) break;  // all lanes together
        uint32_t w[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint2 numbers = packed_numbers::load_eight<BITS>(packed + 8 * j * Shape::PITCH + chunk * CHUNK_BYTES, t);
            source.decode(w[j], numbers, weights, j, ready[0]);
        }
#pragma unroll
        for (int i = 1; i < Shape::PART; ++i) ready[i - 1] = ready[i];  // registers have no index
        const int column = (64 * chunk + 16 * t) ^ (g % 2 * 64);
#pragma unroll
        for (int i = 0; i < MANY_ROWS / 8; ++i)
            multiply_eight(sums[i], w, *reinterpret_cast<const uint4*>(x + 8 * i * Shape::X_BYTES + column));
    }
}

// The sums of this warp; rows of x and channels beyond the last count as zeros, and nothing beyond is read.
template <class Source>
__device__ __forceinline__ void multiply_many(Sums<MANY_ROWS / 8>& sums, const Source& source, const Problem& problem, int8_t* shared) {
    constexpr int BITS = Source::bits;
    using Shape = Stage<BITS>;
    const int32_t tiles = (problem.depth + Shape::LENGTH - 1) / Shape::LENGTH, chunks = problem.depth / CHUNK;
    if (tiles == 0) return;
    int32_t channel[2];
    lane_channels(channel, problem.first_channel + warp_channel(), problem.channels);
    Copies<BITS> copies;
#pragma unroll 1
    for (int stage = 0; stage < Shape::COUNT - 1; ++stage) {
        if (stage < tiles) {
            copies.start(problem, stage * Shape::LENGTH, shared + stage * Shape::BYTES);
            copies.finish(problem);
        }
        async_copy::commit();
    }
    const typename Source::Lane weights(source, channel);
    typename Source::Ahead ahead[Shape::PART];
    const auto fetch = [&](int32_t first) {  // of the chunks beyond the last, the last one's
#pragma unroll
        for (int i = 0; i < Shape::PART; ++i) source.fetch(ahead[i], weights, min(first + i, chunks - 1));
    };
    fetch(0);
#pragma unroll 1
    for (int32_t tile = 0; tile < tiles; ++tile) {
        async_copy::wait<Shape::COUNT - 2>();
        __syncthreads();  // this tile is there for all, and all have left the stage that is filled next
        const int32_t next = tile + Shape::COUNT - 1;
        if (next < tiles) copies.start(problem, next * Shape::LENGTH, shared + next % Shape::COUNT * Shape::BYTES);
#pragma unroll 1
        for (int32_t part = 0; part < Shape::CHUNKS; part += Shape::PART) {
            const int32_t chunk = tile * Shape::CHUNKS + part;
            typename Source::Ready ready[Shape::PART];
#pragma unroll
            for (int i = 0; i < Shape::PART; ++i) ready[i] = source.arrive(ahead[i]);
            fetch(chunk + Shape::PART);
            multiply_part(sums, source, weights, ready, shared + tile % Shape::COUNT * Shape::BYTES, part, chunks - chunk);
        }
        if (next < tiles) copies.finish(problem);
        async_copy::commit();
    }
}

// Adds the products with the sparse matrix to the sums of this warp. The products come through shared memory, 32 rows of x at a time,
// which fit into any stages.
__device__ __forceinline__ void add_sparse(
    Sums<MANY_ROWS / 8>& sums, const Problem& problem, const sparse_rows::Matrix& sparse, int8_t* shared) {
    constexpr int GROUPS = 4, ROWS = 8 * GROUPS;
    constexpr int PITCH = MANY_CHANNELS + 4;  // so that the lanes of half a warp meet in no bank
    static_assert(ROWS * PITCH * 4 <= 2 * Stage<2>::BYTES, "the products fit");
    float* all = reinterpret_cast<float*>(shared);  // [row, channel]
    const int lane = threadIdx.x % 32;
    const float* mine = all + lane % 4 * 2 * PITCH + warp_channel() + lane / 4 * 2;
#pragma unroll 1
    for (int pass = 0; pass < MANY_ROWS / ROWS; ++pass) {
        const int32_t first = problem.first_row + pass * ROWS, rows = min(problem.rows - first, ROWS);
        if (rows <= 0) break;
        __syncthreads();  // all have read the last stage, or the products before
        sparse_rows::multiply_rows<WARPS, MANY_CHANNELS, GROUPS>(
            sparse, problem.first_channel, problem.channels, problem.x + int64_t(first) * problem.depth, problem.depth, rows,
            [&](int row, int channel, float product) { all[row * PITCH + channel] = product; });
        __syncthreads();  // all products are there
#pragma unroll
        for (int i = 0; i < MANY_ROWS / 8; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e)  // of rows beyond the last too, whose sums nobody uses
                if (i / GROUPS == pass) sums[i][e] += mine[(8 * (i % GROUPS) + e % 2) * PITCH + e / 2];
    }
}
__device__ __forceinline__ void add_sparse(Sums<MANY_ROWS / 8>&, const Problem&, const sparse_rows::None&, int8_t*) {}

// Writes the sums of this warp.
__device__ __forceinline__ void store_sums(const Sums<MANY_ROWS / 8>& sums, const Problem& problem, uint16_t* __restrict__ y) {
    const int lane = threadIdx.x % 32;
    const int32_t channel = problem.first_channel + warp_channel() + lane / 4 * 2;
#pragma unroll
    for (int i = 0; i < MANY_ROWS / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int32_t row = problem.first_row + 8 * i + 2 * (lane % 4) + e;
            uint16_t* to = y + int64_t(row) * problem.channels + channel;
            if (row < problem.rows) store_pair(to, sums[i][e], sums[i][e + 2], problem.channels - channel, problem.channels % 2 == 0);
        }
}

template <class Source, class Sparse>
__device__ __forceinline__ void compute_many(
    const Source& source, const Problem& problem, const Sparse& sparse, int8_t* shared, uint16_t* y) {
    Sums<MANY_ROWS / 8> sums = {};
    multiply_many(sums, source, problem, shared);
    add_sparse(sums, problem, sparse, shared);
    store_sums(sums, problem, y);
}

}  // namespace packed_product
