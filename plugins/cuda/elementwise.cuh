// y = work(x) for each element of [rows, channels], what differs between channels being loaded once for a thread.
//
// A block takes ROWS rows of CHANNELS channels, a thread four channels of each. All its loads begin before the first is
// used, 16 bytes each: 128 bytes of a thread are on their way, so that a few hundred threads of a multiprocessor are
// enough to keep the memory busy.
#pragma once

#include "cuda/quad.cuh"

namespace elementwise {

constexpr int THREADS = 64, ROWS = 8, CHANNELS = quad::SIZE * THREADS;

// `source.place(row)` is where a row lies, `next()` of it that of the next one, and `source.load(place, channel, count, values)`
// loads four elements of x,
// of which `source.element(values, i, count)` is one; `work.factors(channel)` is what a channel has, and work(x, factors) the element of y.
// Grid: (rows / ROWS, channels / CHANNELS), rounded up.
template <class Source, class Work, class Out>
__device__ __forceinline__ void apply(const Source& source, int32_t rows, int32_t channels, const Work& work, Out* __restrict__ y) {
    const int32_t channel = (int32_t(blockIdx.y) * THREADS + int32_t(threadIdx.x)) * quad::SIZE, count = channels - channel;
    const int32_t first = int32_t(blockIdx.x) * ROWS;
    if (count <= 0) return;
    typename Source::Values values[ROWS];
    auto place = source.place(first);
#pragma unroll
    for (int row = 0; row < ROWS; ++row, place.next())
        if (first + row < rows) source.load(place, channel, count, values[row]);
    decltype(work.factors(0)) factors[quad::SIZE];
#pragma unroll
    for (int i = 0; i < quad::SIZE; ++i) factors[i] = work.factors(i < count ? channel + i : channel);
    const bool aligned = quad::is_aligned(y, channels);
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        if (first + row >= rows) return;
        int32_t results[quad::SIZE];
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) results[i] = work(source.element(values[row], i, count), factors[i]);
        quad::store(y + int64_t(first + row) * channels + channel, count, aligned, results);
    }
}

// An x of int32, in the shape of y.
struct Plain {
    struct Values {
        int32_t all[quad::SIZE];
    };

    const int32_t* x;
    int32_t channels;
    bool aligned;

    __device__ __forceinline__ Plain(const int32_t* x, int32_t channels)
        : x(x), channels(channels), aligned(quad::is_aligned(x, channels)) {}
    struct Place {
        int32_t row;
        __device__ __forceinline__ void next() { ++row; }
    };
    __device__ __forceinline__ Place place(int32_t row) const { return {row}; }
    __device__ __forceinline__ void load(const Place& place, int32_t channel, int32_t count, Values& values) const {
        quad::load(x + int64_t(place.row) * channels + channel, count, aligned, values.all);
    }
    __device__ __forceinline__ int32_t element(const Values& values, int i, int32_t) const { return values.all[i]; }
};

}  // namespace elementwise
