// LutMatMul: y = x·wᵀ, w[n, k] = lut[n, number k of row n]; float16 on the matrix unit (cuda/packed_weights/product.cuh), float32
// without it. The kernels `_sparse` add x·Sᵀ, of the sparse values of a dense-and-sparse weight (cuda/packed_weights/sparse_rows.cuh).
//
// In float16 a lane holds its two channels' tables in registers, as two planes: the low and the high bytes of the entries.
// A look-up is then a permutation of bytes, four at a time; it needs no shared memory, where lanes that look up different
// entries would wait for each other. In float32 the tables lie in shared memory once for each lane, in the lane's bank.
//
// Beside a product of sparse rows in a launch of its own that is one launch instead of two, and x is read and y written once: for
// one row of x and 4096 x 4096 weights of 4 bits, 0.45 % of them sparse, 24,576 bytes fewer of 9.3 million.
//
// Of every kernel: x: [rows, depth]; packed: int32 [channels, depth·bits/32]; lut: float16 or float32 [channels, 2^bits], by
// lut_bytes, the bytes of an entry; values: float16 or float32 [nnz], by value_bytes; columns: int32 [nnz]; row_offsets: int32
// [channels + 1]; y: [rows, channels], of x's dtype.
#include "cuda/packed_weights/product.cuh"
#include "cuda/packed_weights/float32.cuh"

namespace {

constexpr int FLOAT32_THREADS = packed_product_float32::THREADS;
constexpr int TABLES = packed_product_float32::CHANNELS * 16 * 32;  // of float32: entries of a block, for each lane

template <int BITS>
struct Tables {
    static constexpr int bits = BITS, ENTRIES = 1 << BITS;
    const void* lut;
    int32_t lut_bytes;

    struct Lane {
        uint32_t low[2][ENTRIES / 4], high[2][ENTRIES / 4];

        __device__ __forceinline__ Lane(const Tables& tables, const int32_t (&channel)[2]) {
            const bool whole = tables.lut_bytes == 2 && async_copy::is_aligned(tables.lut);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                uint32_t pairs[ENTRIES / 2];
                const int64_t first = int64_t(channel[j]) * ENTRIES;
                if (whole) {
                    packed_product::load_words<true>(pairs, static_cast<const uint32_t*>(tables.lut) + first / 2);
                } else {
#pragma unroll
                    for (int i = 0; i < ENTRIES / 2; ++i) {
                        const uint32_t odd = half::element_bits(tables.lut, tables.lut_bytes, first + 2 * i + 1);
                        pairs[i] = odd << 16 | half::element_bits(tables.lut, tables.lut_bytes, first + 2 * i);
                    }
                }
#pragma unroll
                for (int four = 0; four < ENTRIES / 4; ++four) {
                    low[j][four] = packed_numbers::permute(pairs[2 * four], pairs[2 * four + 1], 0x6420);
                    high[j][four] = packed_numbers::permute(pairs[2 * four], pairs[2 * four + 1], 0x7531);
                }
            }
        }
    };
    struct Ahead {};
    struct Ready {};

    __device__ __forceinline__ void fetch(Ahead&, const Lane&, int32_t) const {}
    __device__ __forceinline__ Ready arrive(const Ahead&) const { return {}; }

    // The bytes of one plane that four nibbles name; `upper` has all bits of those from the plane's second half.
    __device__ __forceinline__ static uint32_t look_up(const uint32_t (&plane)[ENTRIES / 4], uint32_t selector, uint32_t upper) {
        if (BITS == 2) return packed_numbers::permute(plane[0], plane[0], selector);
        const uint32_t first = packed_numbers::permute(plane[0], plane[1], selector);
        if (BITS == 3) return first;
        return (first & ~upper) | (packed_numbers::permute(plane[ENTRIES / 4 - 2], plane[ENTRIES / 4 - 1], selector) & upper);
    }

    __device__ __forceinline__ static void decode(uint32_t (&w)[4], const uint2& numbers, const Lane& lane, int j, const Ready&) {
        const uint32_t all = packed_numbers::nibbles<BITS>(numbers.x);
        uint32_t selector = all & 0x77777777;
#pragma unroll
        for (int four = 0; four < 2; ++four, selector >>= 16) {
            // The sign bits of all's bytes are the fourth bits of the odd nibbles, those of all << 4 of the even ones.
            const uint32_t upper = BITS == 4 ? packed_numbers::permute(all, all << 4, four ? 0xbfae : 0x9d8c) : 0;
            const uint32_t low = look_up(lane.low[j], selector, upper), high = look_up(lane.high[j], selector, upper);
            w[2 * four] = packed_numbers::permute(low, high, 0x5140);
            w[2 * four + 1] = packed_numbers::permute(low, high, 0x7362);
        }
    }
};

// The tables of a block's channels in float32: entry e of channel j for a lane at [j, e, lane].
struct SharedTables {
    const float* tables;
    int32_t bits;

    __device__ __forceinline__ void operator()(float (&w)[8], uint64_t numbers, int j, int32_t) const {
#pragma unroll
        for (int i = 0; i < 8; ++i, numbers >>= bits)
            w[i] = tables[(j * 16 + int(numbers & ((1 << bits) - 1))) * 32 + threadIdx.x % 32];
    }
};

template <int BITS, class Sparse = sparse_rows::None>
__device__ __forceinline__ void lut_matmul(
    int8_t* shared, const uint16_t* x, const int32_t* packed, const void* lut, int32_t rows, int32_t depth, int32_t channels,
    int32_t few, int32_t lut_bytes, uint16_t* y, const Sparse& sparse = {}) {
    packed_product::compute(Tables<BITS>{lut, lut_bytes}, x, packed, rows, depth, channels, few, shared, y, sparse);
}

template <class Sparse = sparse_rows::None>
__device__ __forceinline__ void lut_matmul_in_float32(
    float* tables, float* partial, const float* x, const int32_t* packed, const void* lut, int32_t rows, int32_t depth,
    int32_t channels, int32_t lut_bytes, int32_t bits, float* y, const Sparse& sparse = {}) {
    packed_product_float32::Problem problem = {x, packed, rows, depth, channels, bits, 0, 0};
    if (!packed_product_float32::locate(problem)) return;
    for (int i = threadIdx.x; i < TABLES; i += FLOAT32_THREADS) {
        const int j = i / 32 / 16, entry = i / 32 % 16;
        if (entry < 1 << bits) tables[i] = half::element(lut, lut_bytes, (int64_t(problem.channel(j)) << bits) + entry);
    }
    __syncthreads();
    packed_product_float32::compute(problem, SharedTables{tables, bits}, partial, y, sparse);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) lut_matmul_2(
    const uint16_t* x, const int32_t* packed, const void* lut, int32_t rows, int32_t depth, int32_t channels, int32_t few, int32_t lut_bytes,
    uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    lut_matmul<2>(shared, x, packed, lut, rows, depth, channels, few, lut_bytes, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) lut_matmul_3(
    const uint16_t* x, const int32_t* packed, const void* lut, int32_t rows, int32_t depth, int32_t channels, int32_t few, int32_t lut_bytes,
    uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    lut_matmul<3>(shared, x, packed, lut, rows, depth, channels, few, lut_bytes, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) lut_matmul_4(
    const uint16_t* x, const int32_t* packed, const void* lut, int32_t rows, int32_t depth, int32_t channels, int32_t few, int32_t lut_bytes,
    uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    lut_matmul<4>(shared, x, packed, lut, rows, depth, channels, few, lut_bytes, y);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) lut_matmul_2_sparse(
    const uint16_t* x, const int32_t* packed, const void* lut, const void* values, const int32_t* columns, const int32_t* row_offsets,
    int32_t rows, int32_t depth, int32_t channels, int32_t few, int32_t lut_bytes, int32_t value_bytes, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    const sparse_rows::Matrix sparse = {values, columns, row_offsets, value_bytes};
    lut_matmul<2>(shared, x, packed, lut, rows, depth, channels, few, lut_bytes, y, sparse);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) lut_matmul_3_sparse(
    const uint16_t* x, const int32_t* packed, const void* lut, const void* values, const int32_t* columns, const int32_t* row_offsets,
    int32_t rows, int32_t depth, int32_t channels, int32_t few, int32_t lut_bytes, int32_t value_bytes, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    const sparse_rows::Matrix sparse = {values, columns, row_offsets, value_bytes};
    lut_matmul<3>(shared, x, packed, lut, rows, depth, channels, few, lut_bytes, y, sparse);
}

extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) lut_matmul_4_sparse(
    const uint16_t* x, const int32_t* packed, const void* lut, const void* values, const int32_t* columns, const int32_t* row_offsets,
    int32_t rows, int32_t depth, int32_t channels, int32_t few, int32_t lut_bytes, int32_t value_bytes, uint16_t* y) {
    INTAGLIO_DYNAMIC_SHARED(int8_t, shared);
    const sparse_rows::Matrix sparse = {values, columns, row_offsets, value_bytes};
    lut_matmul<4>(shared, x, packed, lut, rows, depth, channels, few, lut_bytes, y, sparse);
}

extern "C" __global__ void __launch_bounds__(FLOAT32_THREADS) lut_matmul_float32(
    const float* x, const int32_t* packed, const void* lut, int32_t rows, int32_t depth, int32_t channels, int32_t lut_bytes,
    int32_t bits, float* y) {
    __shared__ float tables[TABLES], partial[packed_product_float32::SUMS];
    lut_matmul_in_float32(tables, partial, x, packed, lut, rows, depth, channels, lut_bytes, bits, y);
}

extern "C" __global__ void __launch_bounds__(FLOAT32_THREADS) lut_matmul_float32_sparse(
    const float* x, const int32_t* packed, const void* lut, const void* values, const int32_t* columns, const int32_t* row_offsets,
    int32_t rows, int32_t depth, int32_t channels, int32_t lut_bytes, int32_t value_bytes, int32_t bits, float* y) {
    __shared__ float tables[TABLES], partial[packed_product_float32::SUMS];
    const sparse_rows::Matrix sparse = {values, columns, row_offsets, value_bytes};
    lut_matmul_in_float32(tables, partial, x, packed, lut, rows, depth, channels, lut_bytes, bits, y, sparse);
}
