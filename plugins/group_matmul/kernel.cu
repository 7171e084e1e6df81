// GroupMatMul: y = x·wᵀ, w = scale·(number - zero point), or scale·level, in groups of a row; float16 on the matrix unit
// (cuda/packed_weights/product.cuh), float32 without it.
//
// In float16 a number q becomes 1024 + q by its bits, the difference from 1024 + zero point is exact, and its product with
// the scale is rounded once. Scales and zero points are read ahead, and wait in registers. A level is read where it is
// needed, from the first-level cache, and its product with the scale in float32 is rounded once.
//
// Of every kernel: x: [rows, depth]; packed: int32 [channels, depth·bits/32]; scales: float16 or float32 [channels, groups],
// by scale_bytes, the bytes of a scale; zero_points: uint8 [channels, groups], or the middle of all numbers; levels:
// float32 [2^bits]; group_size, depth / groups, is a multiple of 32, in float32 of 16; y: [rows, channels], of x's dtype.
#include "cuda/packed_weights/product.cuh"
#include "cuda/packed_weights/float32.cuh"

namespace {

constexpr int RECIPROCAL_BITS = 30;  // exact as long as chunks, times those of a group, are below 2^30
constexpr int FLOAT32_THREADS = packed_product_float32::THREADS;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int LEVEL_BLOCKS = 1;  // a T4 has no registers for two
#else
constexpr int LEVEL_BLOCKS = packed_product::BLOCKS;
#endif

struct Scales {
    const void* __restrict__ scales;
    const uint8_t* __restrict__ zero_points;  // nullptr: the middle
    int32_t scale_bytes, groups;  // of a scale; of a channel
};

template <int BITS>
struct Groups {
    static constexpr int bits = BITS;
    Scales given;
    int32_t reciprocal;  // of the chunks of a group, times 2^RECIPROCAL_BITS, rounded up

    struct Lane {
        uint32_t start[2];  // of both channels among all groups

        __device__ __forceinline__ Lane(const Groups& of, const int32_t (&channel)[2])
            : start{uint32_t(channel[0] * of.given.groups), uint32_t(channel[1] * of.given.groups)} {}
    };
    struct Ahead {
        uint32_t scale[2], zero_point[2];  // as read
    };
    struct Ready {
        uint32_t scale[2];  // in float16, and in the high half 1024 + zero point
    };

    __device__ __forceinline__ void fetch(Ahead& ahead, const Lane& lane, int32_t chunk) const {
        const uint32_t group = uint32_t(int64_t(chunk) * reciprocal >> RECIPROCAL_BITS);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t at = lane.start[j] + group;
            ahead.zero_point[j] = given.zero_points ? __ldg(given.zero_points + at) : 1 << (BITS - 1);
            if (given.scale_bytes == 2) ahead.scale[j] = __ldg(static_cast<const uint16_t*>(given.scales) + at);
            else ahead.scale[j] = __ldg(static_cast<const uint32_t*>(given.scales) + at);
        }
    }
    __device__ __forceinline__ Ready arrive(const Ahead& ahead) const {
        Ready ready;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t scale = given.scale_bytes == 2 ? ahead.scale[j] : half::from_float(half::bits_to_float(ahead.scale[j]));
            ready.scale[j] = (0x6400 + ahead.zero_point[j]) << 16 | scale;
        }
        return ready;
    }

    __device__ __forceinline__ static void decode(uint32_t (&w)[4], const uint2& numbers, const Lane&, int j, const Ready& ready) {
        const uint32_t scale = packed_numbers::permute(ready.scale[j], 0, 0x1010);
        const uint32_t zero_point = packed_numbers::permute(ready.scale[j], 0, 0x3232);
        const uint2 bytes = packed_numbers::bytes<BITS>(numbers);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            const uint32_t q = packed_numbers::permute(pair < 2 ? bytes.x : bytes.y, 0x64646464, pair % 2 ? 0x4342 : 0x4140);
            w[pair] = half::multiply(half::subtract(q, zero_point), scale);
        }
    }
};

template <int BITS>
struct Levels {
    static constexpr int bits = BITS;
    Scales given;
    const float* __restrict__ levels;
    int32_t reciprocal;

    struct Lane {
        uint32_t start[2];

        __device__ __forceinline__ Lane(const Levels& of, const int32_t (&channel)[2])
            : start{uint32_t(channel[0] * of.given.groups), uint32_t(channel[1] * of.given.groups)} {}
    };
    struct Ahead {
        uint32_t scale[2];
    };
    struct Ready {
        float scale[2];
    };

    __device__ __forceinline__ void fetch(Ahead& ahead, const Lane& lane, int32_t chunk) const {
        const uint32_t group = uint32_t(int64_t(chunk) * reciprocal >> RECIPROCAL_BITS);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const uint32_t at = lane.start[j] + group;
            if (given.scale_bytes == 2) ahead.scale[j] = __ldg(static_cast<const uint16_t*>(given.scales) + at);
            else ahead.scale[j] = __ldg(static_cast<const uint32_t*>(given.scales) + at);
        }
    }
    __device__ __forceinline__ Ready arrive(const Ahead& ahead) const {
        Ready ready;
#pragma unroll
        for (int j = 0; j < 2; ++j)
            ready.scale[j] = given.scale_bytes == 2 ? half::to_float(uint16_t(ahead.scale[j])) : half::bits_to_float(ahead.scale[j]);
        return ready;
    }

    __device__ __forceinline__ uint32_t weight(uint32_t number, float scale) const {
        return half::from_float(half::bits_to_float(__ldg(reinterpret_cast<const uint32_t*>(levels) + number)) * scale);
    }
    __device__ __forceinline__ void decode(uint32_t (&w)[4], const uint2& numbers, const Lane&, int j, const Ready& ready) const {
        const uint2 bytes = packed_numbers::bytes<BITS>(numbers);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            const uint32_t two = (pair < 2 ? bytes.x : bytes.y) >> pair % 2 * 16;
            w[pair] = weight(two >> 8 & 255, ready.scale[j]) << 16 | weight(two & 255, ready.scale[j]);
        }
    }
};

template <int BITS>
__device__ __forceinline__ void level_matmul(
    int8_t* shared, const uint16_t* x, const int32_t* packed, const Scales& scales, const float* levels, int32_t reciprocal,
    int32_t rows, int32_t depth, int32_t channels, int32_t few, uint16_t* y) {
    packed_product::compute(Levels<BITS>{scales, levels, reciprocal}, x, packed, rows, depth, channels, few, shared, y);
}

template <int BITS>
__device__ __forceinline__ void group_matmul(
    int8_t* shared, const uint16_t* x, const int32_t* packed, const Scales& scales, int32_t reciprocal, int32_t rows,
    int32_t depth, int32_t channels, int32_t few, uint16_t* y) {
    packed_product::compute(Groups<BITS>{scales, reciprocal}, x, packed, rows, depth, channels, few, shared, y);
}

struct Float32Groups {
    Scales given;
    const float* __restrict__ levels;  // nullptr: the numbers, less the zero point
    int32_t group_size;
    packed_product_float32::Problem problem;

    __device__ __forceinline__ void operator()(float (&w)[8], uint64_t numbers, int j, int32_t k) const {
        const int64_t at = int64_t(problem.channel(j)) * given.groups + k / group_size;
        const float scale = half::element(given.scales, given.scale_bytes, at);
        const int zero_point = given.zero_points ? given.zero_points[at] : 1 << (problem.bits - 1);
#pragma unroll
        for (int i = 0; i < 8; ++i, numbers >>= problem.bits) {
            const int number = int(numbers & ((1 << problem.bits) - 1));
            w[i] = scale * (levels ? levels[number] : float(number - zero_point));
        }
    }
};

__device__ __forceinline__ void group_matmul_float32_of(
    float* partial, const float* x, const int32_t* packed, const Scales& scales, const float* levels, int32_t group_size,
    int32_t rows, int32_t depth, int32_t channels, int32_t bits, float* y) {
    packed_product_float32::Problem problem = {x, packed, rows, depth, channels, bits, 0, 0};
    if (packed_product_float32::locate(problem)) packed_product_float32::compute(problem, Float32Groups{scales, levels, group_size, problem}, partial, y);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_2(
    const uint16_t* x, const int32_t* packed, const void* scales, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<2>(shared, x, packed, {scales, nullptr, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_2_zero_points(
    const uint16_t* x, const int32_t* packed, const void* scales, const uint8_t* zero_points, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<2>(shared, x, packed, {scales, zero_points, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_3(
    const uint16_t* x, const int32_t* packed, const void* scales, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<3>(shared, x, packed, {scales, nullptr, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_3_zero_points(
    const uint16_t* x, const int32_t* packed, const void* scales, const uint8_t* zero_points, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<3>(shared, x, packed, {scales, zero_points, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_4(
    const uint16_t* x, const int32_t* packed, const void* scales, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<4>(shared, x, packed, {scales, nullptr, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_4_zero_points(
    const uint16_t* x, const int32_t* packed, const void* scales, const uint8_t* zero_points, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<4>(shared, x, packed, {scales, zero_points, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_5(
    const uint16_t* x, const int32_t* packed, const void* scales, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<5>(shared, x, packed, {scales, nullptr, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_5_zero_points(
    const uint16_t* x, const int32_t* packed, const void* scales, const uint8_t* zero_points, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<5>(shared, x, packed, {scales, zero_points, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_6(
    const uint16_t* x, const int32_t* packed, const void* scales, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<6>(shared, x, packed, {scales, nullptr, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_6_zero_points(
    const uint16_t* x, const int32_t* packed, const void* scales, const uint8_t* zero_points, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<6>(shared, x, packed, {scales, zero_points, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_8(
    const uint16_t* x, const int32_t* packed, const void* scales, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<8>(shared, x, packed, {scales, nullptr, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) group_matmul_8_zero_points(
    const uint16_t* x, const int32_t* packed, const void* scales, const uint8_t* zero_points, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    group_matmul<8>(shared, x, packed, {scales, zero_points, scale_bytes, groups}, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, LEVEL_BLOCKS) group_matmul_4_levels(
    const uint16_t* x, const int32_t* packed, const void* scales, const float* levels, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    level_matmul<4>(shared, x, packed, {scales, nullptr, scale_bytes, groups}, levels, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, LEVEL_BLOCKS) group_matmul_8_levels(
    const uint16_t* x, const int32_t* packed, const void* scales, const float* levels, int32_t rows, int32_t depth,
    int32_t channels, int32_t few, int32_t scale_bytes, int32_t groups, int32_t reciprocal, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    level_matmul<8>(shared, x, packed, {scales, nullptr, scale_bytes, groups}, levels, reciprocal, rows, depth, channels, few, y);
}

extern "C" __global__ void __launch_bounds__(FLOAT32_THREADS) group_matmul_float32(
    const float* x, const int32_t* packed, const void* scales, int32_t rows, int32_t depth,
    int32_t channels, int32_t scale_bytes, int32_t group_size, int32_t bits, float* y) {
    __shared__ float partial[packed_product_float32::SUMS];
    group_matmul_float32_of(partial, x, packed, {scales, nullptr, scale_bytes, depth / group_size}, nullptr, group_size, rows, depth, channels, bits, y);
}

extern "C" __global__ void __launch_bounds__(FLOAT32_THREADS) group_matmul_float32_zero_points(
    const float* x, const int32_t* packed, const void* scales, const uint8_t* zero_points, int32_t rows, int32_t depth,
    int32_t channels, int32_t scale_bytes, int32_t group_size, int32_t bits, float* y) {
    __shared__ float partial[packed_product_float32::SUMS];
    group_matmul_float32_of(partial, x, packed, {scales, zero_points, scale_bytes, depth / group_size}, nullptr, group_size, rows, depth, channels, bits, y);
}

extern "C" __global__ void __launch_bounds__(FLOAT32_THREADS) group_matmul_float32_levels(
    const float* x, const int32_t* packed, const void* scales, const float* levels, int32_t rows, int32_t depth,
    int32_t channels, int32_t scale_bytes, int32_t group_size, int32_t bits, float* y) {
    __shared__ float partial[packed_product_float32::SUMS];
    group_matmul_float32_of(partial, x, packed, {scales, nullptr, scale_bytes, depth / group_size}, levels, group_size, rows, depth, channels, bits, y);
}
