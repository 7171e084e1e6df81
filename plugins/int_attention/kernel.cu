// IntAttention: scores, i-softmax and values of multi-head attention, from int8 to int8, nothing stored in between.
//
// A block takes 64 queries of one head, a warp 16 of them, and passes twice over the keys in tiles of 64: first for each
// query's largest score, then, computing the scores again, for the exponentials, their sum, and their products with the
// values. So the exponentials are relative to the row's true maximum, as the definition says, and no row is too long.
//
// The sums of a score tile are the fragments of the next product as they lie: the matrix unit's k index 4t + {0, 1} is
// key 2t + {0, 1} of one 8-wide tile of scores, 4t + {2, 3} the same of the next tile, and the values' rows are read in
// that order. The exponentials, 15 bits, go in as two planes of bytes. Rows in shared memory are DEPTH + 16 bytes apart,
// so that no two lanes meet in a bank. Columns of a lane: as in cuda/gemm.cuh.
#include "cuda/async_copy.cuh"
#include "cuda/broadcast.cuh"
#include "cuda/epilogue.cuh"
#include "cuda/matrix_unit.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128;
constexpr int QUERIES = 64, KEYS = 64;  // of a tile

struct Mask {
    const uint8_t* __restrict__ data;  // nullptr: all are kept; a byte of 0 masks, any other keeps, as in a file
    broadcast::Shape shape;            // [batch, heads, queries, keys], an axis of 1 is repeated
};

struct Bias {
    const int32_t* __restrict__ data;  // nullptr: none
    broadcast::Shape shape;            // as the mask's
};

// Length of a head (depth), and how far apart rows of all heads lie (stride); pointers to the first row of this block's
// head.
struct Head {
    const int8_t *query, *key, *value;
    int32_t queries, keys, depth, stride;
    bool aligned;
};

template <int DEPTH>
constexpr int SHARED_BYTES = 2 * 2 * KEYS * (DEPTH + 16);  // two stages of keys and values

template <int DEPTH>
struct Place {
    __device__ __forceinline__ int operator()(int row, int column) const { return row * (DEPTH + 16) + column; }
};

// 64 rows of a head on their way to shared memory; what lies beyond the last row or the depth becomes zeros.
template <int DEPTH>
struct RowsCopy {
    async_copy::TileCopy<KEYS, DEPTH, THREADS> copy;

    __device__ __forceinline__ void start(int8_t* to, const int8_t* from, int32_t first, int32_t rows, const Head& head) {
        copy.start(to, from + int64_t(first) * head.stride, head.stride, rows - first, head.depth, head.aligned, Place<DEPTH>());
    }
    __device__ __forceinline__ void finish() { copy.finish(); }
};

// The warp's 16 queries, as fragments, through the shared memory that the keys and values use afterwards.
template <int DEPTH>
__device__ __forceinline__ void load_queries(uint32_t (&fragments)[DEPTH / 32][4], const Head& head, int32_t first, int8_t* shared) {
    RowsCopy<DEPTH> copy;
    copy.start(shared, head.query, first, head.queries, head);
    copy.finish();
    async_copy::commit();
    async_copy::wait<0>();
    __syncthreads();
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < DEPTH / 32; ++step)
        matrix_unit::load_fragment(fragments[step], shared + row * (DEPTH + 16) + 32 * step + lane / 16 * 16);
    __syncthreads();
}

// The scores of 16 queries and 32 keys: score[j][e] of query lane/4 + 8·(e/2) and key 8j + 2·(lane%4) + e%2.
template <int DEPTH>
__device__ __forceinline__ void multiply_keys(int32_t (&score)[4][4], const uint32_t (&query)[DEPTH / 32][4], const int8_t* keys) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < DEPTH / 32; ++step)
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            uint32_t rows[4];  // of keys 0-7, 8-15, and both again 16 bytes further
            matrix_unit::load_fragment(rows, keys + (16 * pair + lane % 16) * (DEPTH + 16) + 32 * step + lane / 16 * 16);
            const uint32_t first[2] = {rows[0], rows[2]}, second[2] = {rows[1], rows[3]};
            matrix_unit::multiply_accumulate(score[2 * pair], query[step], first);
            matrix_unit::multiply_accumulate(score[2 * pair + 1], query[step], second);
        }
}

// Adds the products of both planes of the exponentials of 16 queries and 32 keys with the values.
template <int DEPTH>
__device__ __forceinline__ void multiply_values(
    int32_t (&high)[DEPTH / 8][4], int32_t (&low)[DEPTH / 8][4], const int32_t (&p)[4][4], const int8_t* values) {
    const int lane = threadIdx.x % 32;
    uint32_t high_fragment[4], low_fragment[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // rows lane/4 and 8 further; keys 0-15, then 16-31
        const int32_t *one = p[i / 2 * 2] + i % 2 * 2, *two = p[i / 2 * 2 + 1] + i % 2 * 2;
        low_fragment[i] = (one[0] & 255) | (one[1] & 255) << 8 | (two[0] & 255) << 16 | uint32_t(two[1] & 255) << 24;
        high_fragment[i] = (one[0] >> 8) | (one[1] >> 8) << 8 | (two[0] >> 8) << 16 | uint32_t(two[1] >> 8) << 24;
    }
#pragma unroll
    for (int group = 0; group < DEPTH / 32; ++group) {
        uint32_t b[4][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t rows[4], columns[4];
#pragma unroll
            for (int row = 0; row < 4; ++row) {
                const int key = 16 * half + row / 2 * 8 + 2 * (lane % 4) + row % 2;
                rows[row] = *reinterpret_cast<const uint32_t*>(values + key * (DEPTH + 16) + 32 * group + lane / 4 * 4);
            }
            matrix_unit::transpose_bytes(rows, columns);
#pragma unroll
            for (int column = 0; column < 4; ++column) b[column][half] = columns[column];
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            matrix_unit::multiply_accumulate(high[4 * group + j], high_fragment, b[j]);
            matrix_unit::multiply_accumulate<true>(low[4 * group + j], low_fragment, b[j]);
        }
    }
}

// A lane's data of its two rows, lane/4 and 8 further.
struct Rows {
    int64_t mask_start[2], bias_start[2];
    int32_t top[2], total[2];
};

__device__ __forceinline__ bool is_kept(const Mask& mask, const Rows& rows, int row, int32_t key, int32_t keys) {
    if (key >= keys) return false;
    return !mask.data || mask.data[rows.mask_start[row] + (mask.shape.length[3] == 1 ? 0 : key)] != 0;
}

__device__ __forceinline__ int32_t bias_of(const Bias& bias, const Rows& rows, int row, int32_t key) {
    if (!bias.data) return 0;
    return min(max(bias.data[rows.bias_start[row] + (bias.shape.length[3] == 1 ? 0 : key)], -(1 << 30)), 1 << 30);
}

template <int DEPTH>
__device__ __forceinline__ void attend(
    int8_t* shared, const Head& head, const Mask& mask, const Bias& bias, const epilogue::Factors& factors,
    const intaglio::ExpConstants& exponential, int8_t* __restrict__ y) {
    constexpr int TILE_BYTES = KEYS * (DEPTH + 16);
    const int lane = threadIdx.x % 32;
    const int32_t first_query = blockIdx.x * QUERIES, first_row = first_query + threadIdx.x / 32 * 16 + lane / 4;
    Rows rows;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        // A row beyond the last computes what the last one does, and writes nothing.
        const int32_t query = min(first_row + 8 * row, head.queries - 1);
        rows.mask_start[row] = mask.data ? broadcast::row_start(blockIdx.z, blockIdx.y, query, mask.shape) : 0;
        rows.bias_start[row] = bias.data ? broadcast::row_start(blockIdx.z, blockIdx.y, query, bias.shape) : 0;
        rows.top[row] = warp::LOWEST;
        rows.total[row] = 0;
    }
    uint32_t query[DEPTH / 32][4];
    load_queries<DEPTH>(query, head, first_query, shared);

    int32_t high[DEPTH / 8][4] = {}, low[DEPTH / 8][4] = {};
    const int32_t tiles = (head.keys + KEYS - 1) / KEYS;
    RowsCopy<DEPTH> key_copy, value_copy;
    if (tiles > 0) {
        key_copy.start(shared, head.key, 0, head.keys, head);
        key_copy.finish();
    }
    async_copy::commit();
    // Tiles 0 .. tiles-1 for the maximum, tiles .. 2·tiles-1 the same keys again, with the values.
#pragma unroll 1
    for (int32_t tile = 0; tile < 2 * tiles; ++tile) {
        async_copy::wait<0>();
        __syncthreads();
        const int32_t next = tile + 1, next_key = (next < tiles ? next : next - tiles) * KEYS;
        int8_t *stage = shared + tile % 2 * 2 * TILE_BYTES, *next_stage = shared + next % 2 * 2 * TILE_BYTES;
        const bool with_keys = next < 2 * tiles, with_values = with_keys && next >= tiles;
        if (with_keys) key_copy.start(next_stage, head.key, next_key, head.keys, head);
        if (with_values) value_copy.start(next_stage + TILE_BYTES, head.value, next_key, head.keys, head);
        const int32_t first_key = (tile < tiles ? tile : tile - tiles) * KEYS;
#pragma unroll 1
        for (int32_t part = 0; part < KEYS; part += 32) {
            int32_t score[4][4] = {};
            multiply_keys<DEPTH>(score, query, stage + part * (DEPTH + 16));
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = e / 2;
                    const int32_t key = first_key + part + 8 * j + lane % 4 * 2 + e % 2;
                    const bool kept = is_kept(mask, rows, row, key, head.keys);
                    if (kept) score[j][e] += bias_of(bias, rows, row, key);
                    if (tile < tiles) {
                        if (kept) rows.top[row] = max(rows.top[row], score[j][e]);
                    } else {
                        score[j][e] = kept ? intaglio::exp(uint32_t(rows.top[row]) - uint32_t(score[j][e]), exponential) : 0;
                        rows.total[row] += score[j][e];
                    }
                }
            if (tile >= tiles) multiply_values<DEPTH>(high, low, score, stage + TILE_BYTES + part * (DEPTH + 16));
        }
        if (with_keys) key_copy.finish();
        if (with_values) value_copy.finish();
        async_copy::commit();
        if (next == tiles) {
#pragma unroll
            for (int row = 0; row < 2; ++row) rows.top[row] = warp::largest<4>(rows.top[row]);
        }
    }

    int32_t factor[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) factor[row] = intaglio::average_factor(warp::sum<4>(rows.total[row]));
    const int32_t width = gridDim.y * head.depth;
    y += int64_t(blockIdx.z) * head.queries * width + blockIdx.y * head.depth;
    const bool whole = head.depth % 8 == 0 && reinterpret_cast<uint64_t>(y) % 8 == 0;
#pragma unroll
    for (int group = 0; group < DEPTH / 32; ++group) {
        const int32_t first = 32 * group + lane % 4 * 8;
        int32_t results[2][8] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (first + i >= head.depth) continue;
            const rounding::Factor scale = epilogue::factor_of(factors, blockIdx.y * head.depth + first + i);
            const int tile = 4 * group + i % 4, e = i / 4;
#pragma unroll
            for (int row = 0; row < 2; ++row) {
                const int32_t average = intaglio::weighted_average(high[tile][2 * row + e], low[tile][2 * row + e], factor[row]);
                results[row][i] = scale.clip8(average);
            }
        }
#pragma unroll
        for (int row = 0; row < 2; ++row)
            if (first_row + 8 * row < head.queries)
                epilogue::store_eight(y + int64_t(first_row + 8 * row) * width + first, results[row], head.depth - first, whole);
    }
}

// The head of this block: grid (queries / 64, heads, batch). With packed == 1, not 0, the three are thirds of their rows.
__device__ __forceinline__ Head this_head(
    const int8_t* query, const int8_t* key, const int8_t* value, int32_t queries, int32_t keys, int32_t depth, int32_t packed) {
    const int32_t width = gridDim.y * depth, stride = width * (1 + 2 * packed);
    const int64_t column = int64_t(blockIdx.y) * depth, key_start = int64_t(blockIdx.z) * keys * stride + column + packed * width;
    const int64_t query_start = int64_t(blockIdx.z) * queries * stride + column;
    const uint64_t addresses = reinterpret_cast<uint64_t>(query) | reinterpret_cast<uint64_t>(key) | reinterpret_cast<uint64_t>(value);
    return {query + query_start, key + key_start, value + key_start + packed * width, queries, keys, depth, stride,
            depth % 16 == 0 && addresses % 16 == 0};
}

template <int DEPTH>
__device__ __forceinline__ void attention(
    int8_t* shared, const int8_t* query, const int8_t* key, const int8_t* value, int32_t batch, int32_t queries,
    int32_t keys, int32_t depth, int32_t packed, const Mask& mask, const Bias& bias, const epilogue::Factors& factors,
    const intaglio::ExpConstants& exponential, int8_t* y) {
    if (int32_t(blockIdx.z) >= batch) return;
    attend<DEPTH>(shared, this_head(query, key, value, queries, keys, depth, packed), mask, bias, factors, exponential, y);
}

}  // namespace

// query: int8 [batch, queries, heads·depth]; key, value: int8 [batch, keys, heads·depth]; packed: 0, or 1 where rows of
// the three are three times as long; multiplier: int32 [multipliers], shift: int32 [shifts], 1 or heads·depth each;
// limit, left, right, base: i-exp's constants; y: int8 [batch, queries, heads·depth]. Kernels for a depth of at most 32,
// 64 and 128, without and with mask: bool [mask0, mask1, mask2, mask3], and with bias: int32 [bias0, bias1, bias2, bias3] besides,
// broadcast to [batch, heads, queries, keys].
extern "C" __global__ void __launch_bounds__(THREADS) int_attention_32(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<32>];
    attention<32>(shared, query, key, value, batch, queries, keys, depth, packed, {}, {}, {multiplier, shift, multipliers, shifts},
                  {uint32_t(limit), left, right, uint32_t(base)}, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) int_attention_32_masked(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift, const uint8_t* mask,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int32_t mask0, int32_t mask1, int32_t mask2, int32_t mask3, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<32>];
    attention<32>(shared, query, key, value, batch, queries, keys, depth, packed, {mask, {{mask0, mask1, mask2, mask3}}}, {},
                  {multiplier, shift, multipliers, shifts}, {uint32_t(limit), left, right, uint32_t(base)}, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) int_attention_32_masked_biased(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift, const uint8_t* mask,
    const int32_t* bias,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int32_t mask0, int32_t mask1, int32_t mask2, int32_t mask3,
    int32_t bias0, int32_t bias1, int32_t bias2, int32_t bias3, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<32>];
    attention<32>(shared, query, key, value, batch, queries, keys, depth, packed, {mask, {{mask0, mask1, mask2, mask3}}}, {bias, {{bias0, bias1, bias2, bias3}}},
                  {multiplier, shift, multipliers, shifts}, {uint32_t(limit), left, right, uint32_t(base)}, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) int_attention_64(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<64>];
    attention<64>(shared, query, key, value, batch, queries, keys, depth, packed, {}, {}, {multiplier, shift, multipliers, shifts},
                  {uint32_t(limit), left, right, uint32_t(base)}, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) int_attention_64_masked(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift, const uint8_t* mask,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int32_t mask0, int32_t mask1, int32_t mask2, int32_t mask3, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<64>];
    attention<64>(shared, query, key, value, batch, queries, keys, depth, packed, {mask, {{mask0, mask1, mask2, mask3}}}, {},
                  {multiplier, shift, multipliers, shifts}, {uint32_t(limit), left, right, uint32_t(base)}, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) int_attention_64_masked_biased(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift, const uint8_t* mask,
    const int32_t* bias,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int32_t mask0, int32_t mask1, int32_t mask2, int32_t mask3,
    int32_t bias0, int32_t bias1, int32_t bias2, int32_t bias3, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<64>];
    attention<64>(shared, query, key, value, batch, queries, keys, depth, packed, {mask, {{mask0, mask1, mask2, mask3}}}, {bias, {{bias0, bias1, bias2, bias3}}},
                  {multiplier, shift, multipliers, shifts}, {uint32_t(limit), left, right, uint32_t(base)}, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) int_attention_128(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<128>];
    attention<128>(shared, query, key, value, batch, queries, keys, depth, packed, {}, {}, {multiplier, shift, multipliers, shifts},
                  {uint32_t(limit), left, right, uint32_t(base)}, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) int_attention_128_masked(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift, const uint8_t* mask,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int32_t mask0, int32_t mask1, int32_t mask2, int32_t mask3, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<128>];
    attention<128>(shared, query, key, value, batch, queries, keys, depth, packed, {mask, {{mask0, mask1, mask2, mask3}}}, {},
                  {multiplier, shift, multipliers, shifts}, {uint32_t(limit), left, right, uint32_t(base)}, y);
}

extern "C" __global__ void __launch_bounds__(THREADS) int_attention_128_masked_biased(
    const int8_t* query, const int8_t* key, const int8_t* value, const int32_t* multiplier, const int32_t* shift, const uint8_t* mask,
    const int32_t* bias,
    int32_t batch, int32_t queries, int32_t keys, int32_t depth, int32_t packed, int32_t multipliers, int32_t shifts,
    int32_t limit, int32_t left, int32_t right, int32_t base, int32_t mask0, int32_t mask1, int32_t mask2, int32_t mask3,
    int32_t bias0, int32_t bias1, int32_t bias2, int32_t bias3, int8_t* y) {
    __shared__ __align__(128) int8_t shared[SHARED_BYTES<128>];
    attention<128>(shared, query, key, value, batch, queries, keys, depth, packed, {mask, {{mask0, mask1, mask2, mask3}}}, {bias, {{bias0, bias1, bias2, bias3}}},
                  {multiplier, shift, multipliers, shifts}, {uint32_t(limit), left, right, uint32_t(base)}, y);
}
