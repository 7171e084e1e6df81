// Copies of 16 bytes from global to shared memory that proceed while a warp computes.
//
// From sm_80 they are cp.async: `start` begins one, `commit` closes a group, `wait<N>` waits for all groups but the
// last N. A T4 has none: there a copy waits in registers between `start` and `finish`, and the other two do nothing.
// A block has to pass a barrier after `wait` before it reads what other threads copied.
#pragma once

#include "integer_math.h"

namespace async_copy {

// The bytes [0, count) at `from`, the others zero; `from` may be misaligned.
__device__ __forceinline__ uint4 load_bytes(const int8_t* from, int count) {
    uint64_t low = 0, high = 0;
#pragma unroll 1
    for (int i = min(count, 16) - 1; i >= 0; --i) {
        if (i >= 8) high = high << 8 | uint8_t(from[i]);
        else low = low << 8 | uint8_t(from[i]);
    }
    return make_uint4(uint32_t(low), uint32_t(low >> 32), uint32_t(high), uint32_t(high >> 32));
}

#if __CUDA_ARCH__ >= 800

struct Copy16 {
    // Copies 16 bytes, or fills with zeros; both addresses are aligned to 16.
    __device__ __forceinline__ void start(void* to, const int8_t* from, bool zeros) {
#if defined(__CUDACC__)
        const uint32_t address = uint32_t(__cvta_generic_to_shared(to));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(zeros ? 0 : 16) : "memory");
#else
        emulation::begin_copy(to, zeros ? nullptr : from, 16);
#endif
    }
    __device__ __forceinline__ void finish() {}
};

// Copies 16 bytes to an address aligned to 16 from one aligned to 4; words beyond the first `count` bytes become zeros.
__device__ __forceinline__ void copy_words(int8_t* to, const int8_t* from, int count) {
#pragma unroll
    for (int at = 0; at < 16; at += 4) {
#if defined(__CUDACC__)
        const uint32_t address = uint32_t(__cvta_generic_to_shared(to + at));
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from + at), "r"(at < count ? 4 : 0) : "memory");
#else
        emulation::begin_copy(to + at, at < count ? from + at : nullptr, 4);
#endif
    }
}

__device__ __forceinline__ void commit() {
#if defined(__CUDACC__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emulation::commit_copies();
#endif
}

template <int PENDING>
__device__ __forceinline__ void wait() {
#if defined(__CUDACC__)
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#else
    emulation::wait_for_copies(PENDING);
#endif
}

#else

struct Copy16 {
    uint4 value;
    uint4* target;

    __device__ __forceinline__ void start(void* to, const int8_t* from, bool zeros) {
        target = static_cast<uint4*>(to);
        value = zeros ? make_uint4(0, 0, 0, 0) : __ldg(reinterpret_cast<const uint4*>(from));
    }
    __device__ __forceinline__ void finish() { *target = value; }
};

// There at once.
__device__ __forceinline__ void copy_words(int8_t* to, const int8_t* from, int count) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(from);
    *reinterpret_cast<uint4*>(to) = make_uint4(count > 0 ? __ldg(words) : 0, count > 4 ? __ldg(words + 1) : 0,
                                               count > 8 ? __ldg(words + 2) : 0, count > 12 ? __ldg(words + 3) : 0);
}

__device__ __forceinline__ void commit() {}

template <int PENDING>
__device__ __forceinline__ void wait() {}

#endif

__device__ __forceinline__ bool is_aligned(const void* address) { return reinterpret_cast<uint64_t>(address) % 16 == 0; }

// A tile of ROWS rows of COLUMNS bytes, copied by THREADS threads. In global memory its rows lie `pitch` bytes apart, in
// shared memory where `place(row, column)` says; rows and columns beyond the last become zeros, and are not read.
// UNIT: the bytes that every address and length is a multiple of.
template <int ROWS, int COLUMNS, int THREADS, int UNIT = 1>
struct TileCopy {
    static constexpr int CHUNKS = COLUMNS / 16, COUNT = (ROWS * CHUNKS + THREADS - 1) / THREADS;
    Copy16 copies[COUNT];
    bool aligned;  // to 16 bytes: the first row, the pitch, and the columns; else words or bytes are copied

    template <class Place>
    __device__ __forceinline__ void start(int8_t* to, const int8_t* from, int64_t pitch, int32_t rows, int32_t columns,
                                          bool is_aligned, const Place& place) {
        aligned = is_aligned;
        if (aligned) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int chunk = i * THREADS + threadIdx.x, row = chunk / CHUNKS, column = chunk % CHUNKS * 16;
                if (makes_copy(i)) copies[i].start(to + place(row, column), from + row * pitch + column, row >= rows || column >= columns);
            }
        } else {
#pragma unroll 1
            for (int chunk = threadIdx.x; chunk < ROWS * CHUNKS; chunk += THREADS) {
                const int row = chunk / CHUNKS, column = chunk % CHUNKS * 16, count = row < rows ? columns - column : 0;
                int8_t* target = to + place(row, column);
                const int8_t* source = from + row * pitch + column;
                if (UNIT % 4 == 0) copy_words(target, source, count);
                else *reinterpret_cast<uint4*>(target) = load_bytes(source, count);
            }
        }
    }
    __device__ __forceinline__ void finish() {
        if (!aligned) return;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (makes_copy(i)) copies[i].finish();
    }
    // Whether this thread makes copy i: the last ones may be fewer than the threads.
    __device__ __forceinline__ static bool makes_copy(int i) {
        return (i + 1) * THREADS <= ROWS * CHUNKS || i * THREADS + int(threadIdx.x) < ROWS * CHUNKS;
    }
};

}  // namespace async_copy
