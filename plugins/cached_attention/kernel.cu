// CachedAttention: attention of tokens to the slots of a cache, in float32.
//
// A block computes one token of one head. It passes over the slots in tiles of as many as it has threads, a score to a
// thread, with a running maximum, and skips a tile in which the token attends to nothing. The token's context is
// added up in its place in memory, each channel by one thread.
#include "cuda/broadcast.cuh"
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

}  // namespace

// query: [batch, heads, tokens, depth]; key: [batch, kv_heads, capacity, depth]; value: [..., capacity, width]; mask: a byte
// for each element of its shape of four axes, 0 where a token does not attend; context: [batch, heads, tokens, width].
// scale_bits: of a float32 above 0. Grid: tokens, heads, batch.
extern "C" __global__ void __launch_bounds__(THREADS) cached_attention_float32(
    const float* query, const float* key, const float* value, const uint8_t* mask, int32_t tokens, int32_t heads,
    int32_t kv_heads, int32_t capacity, int32_t depth, int32_t width, int32_t scale_bits, int32_t mask_batch,
    int32_t mask_heads, int32_t mask_tokens, int32_t mask_capacity, float* context) {
    __shared__ Shared shared;
    const int32_t token = blockIdx.x, head = blockIdx.y, sequence = blockIdx.z, thread = threadIdx.x;
    if (token >= tokens) return;
    const int64_t row = (int64_t(sequence) * heads + head) * tokens + token;
    const int64_t kv_head = int64_t(sequence) * kv_heads + head / (heads / kv_heads);
    const float* const x = query + row * depth;
    const float* const keys = key + kv_head * capacity * depth;
    const float* const values = value + kv_head * capacity * width;
    float* const y = context + row * width;
    const uint8_t* const attended =
        mask + broadcast::row_start(sequence, head, token, {mask_batch, mask_heads, mask_tokens, mask_capacity});
    const float scale = __int_as_float(scale_bits);
    for (int32_t channel = thread; channel < width; channel += THREADS) y[channel] = 0;

    float top = NOTHING, total = 0;
    for (int32_t first = 0; first < capacity; first += THREADS) {
        const int32_t slot = first + thread;
        const bool attends = slot < capacity && attended[mask_capacity == 1 ? 0 : slot] != 0;
        float score = NOTHING;
        if (attends) {
            score = 0;
            for (int32_t k = 0; k < depth; ++k) score += x[k] * keys[int64_t(slot) * depth + k];
            score *= scale;
        }
        if (largest(shared, attends ? 1.0f : 0.0f) == 0) continue;
        const float before = top, of_tile = largest(shared, score);
        top = of_tile > before ? of_tile : before;
        const float factor = expf(before - top);
        shared.weights[thread] = attends ? expf(score - top) : 0;
        total = total * factor + sum(shared, shared.weights[thread]);
        const int32_t slots = min(capacity - first, THREADS);
        for (int32_t channel = thread; channel < width; channel += THREADS) {
            float added = y[channel] * factor;
            for (int32_t i = 0; i < slots; ++i) added += shared.weights[i] * values[int64_t(first + i) * width + channel];
            y[channel] = added;
        }
        __syncthreads();
    }
    for (int32_t channel = thread; channel < width; channel += THREADS) y[channel] = total != 0 ? y[channel] / total : 0;
}
