// CachedAttention: attention of tokens to the slots of a cache, of float32 or quantised.
//
// A block computes one token of one head. It passes over the slots in tiles of as many as it has threads, a score to a
// thread, with a running maximum, and skips a tile in which the token attends to nothing. The token's context is
// added up in its place in memory, each channel by one thread.
#include "cuda/broadcast.cuh"
#include "cuda/cache_slots.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr float NOTHING = -3.4028234663852886e38f;

struct Shared {
    float weights[THREADS];
    float parts[WARPS];
};

// Over the block; every thread gets it. `shared.parts` is free afterwards.
__device__ __forceinline__ float largest(Shared& shared, float value) {
    const float of_warp = warp::largest(value);
    if (threadIdx.x % 32 == 0) shared.parts[threadIdx.x / 32] = of_warp;
    __syncthreads();
    float result = shared.parts[0];
    for (int i = 1; i < WARPS; ++i) result = shared.parts[i] > result ? shared.parts[i] : result;
    __syncthreads();
    return result;
}

__device__ __forceinline__ float sum(Shared& shared, float value) {
    const float of_warp = warp::sum(value);
    if (threadIdx.x % 32 == 0) shared.parts[threadIdx.x / 32] = of_warp;
    __syncthreads();
    float result = 0;
    for (int i = 0; i < WARPS; ++i) result += shared.parts[i];
    __syncthreads();
    return result;
}

struct Sizes {
    int32_t tokens, heads, kv_heads, capacity, depth, width;
};

template <int KEY_BITS, int VALUE_BITS>
__device__ __forceinline__ void attend(const float* query, const uint8_t* key, const uint8_t* value, const uint8_t* mask,
                                       const Sizes& sizes, int32_t scale_bits, const broadcast::Shape& mask_shape, float* context) {
    __shared__ Shared shared;
    const int32_t token = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z, thread = threadIdx.x;
    if (token >= sizes.tokens) return;
    const int32_t capacity = sizes.capacity, depth = sizes.depth, width = sizes.width;
    const int32_t key_bytes = slots::bytes<KEY_BITS>(depth), value_bytes = slots::bytes<VALUE_BITS>(width);
    const int64_t row = (int64_t(sequence) * sizes.heads + head) * sizes.tokens + token;
    const int64_t kv_head = int64_t(sequence) * sizes.kv_heads + head / (sizes.heads / sizes.kv_heads);
    const float* const x = query + row * depth;
    const uint8_t* const keys = key + kv_head * capacity * key_bytes;
    const uint8_t* const values = value + kv_head * capacity * value_bytes;
    float* const y = context + row * width;
    const uint8_t* const attended = mask + broadcast::row_start(sequence, head, token, mask_shape);
    const float scale = __int_as_float(scale_bits);
    for (int32_t channel = thread; channel < width; channel += THREADS) y[channel] = 0;

    float top = NOTHING, total = 0;
    for (int32_t first = 0; first < capacity; first += THREADS) {
        const int32_t slot = first + thread;
        const bool attends = slot < capacity && attended[mask_shape.length[3] == 1 ? 0 : slot] != 0;
        float score = NOTHING;
        if (attends) {
            score = 0;
            const uint8_t* const row = keys + int64_t(slot) * key_bytes;
            for (int32_t k = 0; k < depth; ++k) score += x[k] * slots::channel<KEY_BITS>(row, depth, k);
            score *= scale;
        }
        if (largest(shared, attends ? 1.0f : 0.0f) == 0) continue;
        const float before = top, of_tile = largest(shared, score);
        top = of_tile > before ? of_tile : before;
        const float factor = expf(before - top);
        shared.weights[thread] = attends ? expf(score - top) : 0;
        total = total * factor + sum(shared, shared.weights[thread]);
        const int32_t count = min(capacity - first, THREADS);
        for (int32_t channel = thread; channel < width; channel += THREADS) {
            float added = y[channel] * factor;
            for (int32_t i = 0; i < count; ++i) {
                const uint8_t* const row = values + int64_t(first + i) * value_bytes;
                added += shared.weights[i] * slots::channel<VALUE_BITS>(row, width, channel);
            }
            y[channel] = added;
        }
        __syncthreads();
    }
    for (int32_t channel = thread; channel < width; channel += THREADS) y[channel] = total != 0 ? y[channel] / total : 0;
}

}  // namespace

// query: [batch, heads, tokens, depth]; key: [batch, kv_heads, capacity, depth]; value: [..., capacity, width], both float32 or
// slots of the bits in the name; mask: a byte for each element of its shape of four axes, 0 where a token does not attend;
// context: [batch, heads, tokens, width]. scale_bits: of a float32 above 0. Grid: tokens, heads, batch.
extern "C" __global__ void __launch_bounds__(THREADS) cached_attention_32_32(
    const float* query, const uint8_t* key, const uint8_t* value, const uint8_t* mask, int32_t tokens, int32_t heads,
    int32_t kv_heads, int32_t capacity, int32_t depth, int32_t width, int32_t scale_bits, int32_t mask_batch,
    int32_t mask_heads, int32_t mask_tokens, int32_t mask_capacity, float* context) {
    attend<32, 32>(query, key, value, mask, {tokens, heads, kv_heads, capacity, depth, width}, scale_bits,
                   {mask_batch, mask_heads, mask_tokens, mask_capacity}, context);
}

extern "C" __global__ void __launch_bounds__(THREADS) cached_attention_8_8(
    const float* query, const uint8_t* key, const uint8_t* value, const uint8_t* mask, int32_t tokens, int32_t heads,
    int32_t kv_heads, int32_t capacity, int32_t depth, int32_t width, int32_t scale_bits, int32_t mask_batch,
    int32_t mask_heads, int32_t mask_tokens, int32_t mask_capacity, float* context) {
    attend<8, 8>(query, key, value, mask, {tokens, heads, kv_heads, capacity, depth, width}, scale_bits,
                   {mask_batch, mask_heads, mask_tokens, mask_capacity}, context);
}

extern "C" __global__ void __launch_bounds__(THREADS) cached_attention_8_4(
    const float* query, const uint8_t* key, const uint8_t* value, const uint8_t* mask, int32_t tokens, int32_t heads,
    int32_t kv_heads, int32_t capacity, int32_t depth, int32_t width, int32_t scale_bits, int32_t mask_batch,
    int32_t mask_heads, int32_t mask_tokens, int32_t mask_capacity, float* context) {
    attend<8, 4>(query, key, value, mask, {tokens, heads, kv_heads, capacity, depth, width}, scale_bits,
                   {mask_batch, mask_heads, mask_tokens, mask_capacity}, context);
}
