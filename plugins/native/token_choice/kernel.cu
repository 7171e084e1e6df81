// What chooses tokens where the logits are: per step, only tokens go to the host. reference.py says what a distance and
// a weight are; sums are of integers, so the token does not depend on the order in which threads add.
#include "cuda/warp.cuh"
#include "native/token_choice/arithmetic.h"

namespace {

using Mass = unsigned long long;  // what atomicAdd takes

constexpr int THREADS = 512;  // each has registers for all that it computes
constexpr int WARPS = THREADS / warp::LANES;
constexpr int MOST_LIKELIEST = 1024;
constexpr int BUCKET_BITS = 11, BUCKETS = 1 << BUCKET_BITS;

__device__ __forceinline__ float minus_infinity() { return __int_as_float(int32_t(0xff800000u)); }

// A block's memory for sums, and what one warp tells all others.
struct Scratch {
    Mass buckets[BUCKETS];
    Mass of_warps[WARPS];
    Mass rest;
    int32_t place;
};

// `value` of all threads joined: every thread gets the result.
template <class T, class Join>
__device__ __forceinline__ T joined(T value, Scratch& scratch, Join join) {
    static_assert(sizeof(T) <= sizeof(Mass));
    T* parts = reinterpret_cast<T*>(scratch.of_warps);
#pragma unroll
    for (int bits = warp::LANES / 2; bits > 0; bits /= 2) value = join(value, __shfl_xor_sync(warp::ALL, value, bits));
    __syncthreads();  // the last result has been read
    if (threadIdx.x % warp::LANES == 0) parts[threadIdx.x / warp::LANES] = value;
    __syncthreads();
    value = parts[threadIdx.x % WARPS];
#pragma unroll
    for (int bits = WARPS / 2; bits > 0; bits /= 2) value = join(value, __shfl_xor_sync(warp::ALL, value, bits));
    return value;
}

// The highest score; NaN if there is one.
__device__ __forceinline__ float highest(const float* __restrict__ scores, int32_t n, Scratch& scratch) {
    float top = minus_infinity();
    const auto join = [](float a, float b) { return a > b || a != a ? a : b; };
    for (int32_t i = threadIdx.x; i < n; i += THREADS) top = join(scores[i], top);
    return joined(top, scratch, join);
}

__device__ __forceinline__ bool is_finite(float score) { return score - score == 0; }

// The sum of the values of all lanes up to this one.
__device__ __forceinline__ Mass running_sum(Mass value, int lane) {
#pragma unroll
    for (int back = 1; back < warp::LANES; back *= 2) {
        const Mass before = __shfl_sync(warp::ALL, value, max(lane - back, 0));
        if (lane >= back) value += before;
    }
    return value;
}

__device__ __forceinline__ int first_of(uint32_t lanes) { return 31 - __clz(int(lanes & (0u - lanes))); }

// The first bucket with which the sum of all before it reaches `enough`, which the sum of all does; and what is missing
// before it. All threads call it after a barrier.
__device__ __forceinline__ int32_t find_bucket(Mass& enough, Scratch& scratch) {
    constexpr int EACH = BUCKETS / warp::LANES;
    if (threadIdx.x < warp::LANES) {
        const int lane = threadIdx.x;
        Mass own = 0;
        for (int i = 0; i < EACH; ++i) own += scratch.buckets[lane * EACH + i];
        const Mass reached = running_sum(own, lane);
        if (lane == first_of(__ballot_sync(warp::ALL, reached >= enough))) {
            Mass rest = enough - (reached - own);
            int32_t place = lane * EACH;
            for (; rest > scratch.buckets[place]; ++place) rest -= scratch.buckets[place];
            scratch.rest = rest;
            scratch.place = place;
        }
    }
    __syncthreads();
    enough = scratch.rest;
    return scratch.place;
}

// The smallest key with which the masses of all keys up to it reach `enough`. `each(i, key)` returns a token's mass and
// sets its key of BITS bits.
template <int BITS, class Each>
__device__ __forceinline__ uint32_t bound_of(int32_t n, Mass enough, Scratch& scratch, Each each) {
    uint32_t found = 0;
    for (int left = BITS; left > 0;) {
        const int shift = max(left - BUCKET_BITS, 0);
        __syncthreads();
        for (int i = threadIdx.x; i < BUCKETS; i += THREADS) scratch.buckets[i] = 0;
        __syncthreads();
        for (int32_t i = threadIdx.x; i < n; i += THREADS) {
            uint32_t key;
            const Mass mass = each(i, key);
            if (mass && (left == BITS || key >> left == found))
                atomicAdd(&scratch.buckets[key >> shift & ((1u << (left - shift)) - 1)], mass);
        }
        __syncthreads();
        found = found << (left - shift) | uint32_t(find_bucket(enough, scratch));
        left = shift;
    }
    return found;
}

// Scores in falling order: the highest has the smallest key.
__device__ __forceinline__ uint32_t key_of(float score) {
    const uint32_t bits = uint32_t(__float_as_int(score));
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}
__device__ __forceinline__ float score_of(uint32_t key) {
    return __int_as_float(int32_t(key >> 31 ? key : ~key & 0x7fffffffu));
}

// Weights of tokens, in memory.
struct Given {
    const Mass* weights;

    __device__ __forceinline__ Mass weight(int32_t i) const { return weights[i]; }
};

// The tokens that the filters found so far keep.
struct Kept {
    const float* scores;
    float top, scale, least;
    uint32_t most;

    __device__ __forceinline__ Mass weight(int32_t i, uint32_t& distance) const {
        distance = token_distance(top, scores[i], scale);
        return scores[i] >= least && distance <= most ? token_weight(distance) : 0;
    }
    __device__ __forceinline__ Mass weight(int32_t i) const {
        uint32_t distance;
        return weight(i, distance);
    }
};

template <class Tokens>
__device__ __forceinline__ Mass sum_of(const Tokens& tokens, int32_t n, Scratch& scratch) {
    Mass total = 0;
    for (int32_t i = threadIdx.x; i < n; i += THREADS) total += tokens.weight(i);
    return joined(total, scratch, [](Mass a, Mass b) { return a + b; });
}

// The token at `draw` / 2^53 of the sum of the weights, -1 if that is 0; the first lanes of a block know it.
template <class Tokens>
__device__ __forceinline__ int32_t drawn(const Tokens& kept, int32_t n, Mass draw, Scratch& scratch) {
    const int lane = threadIdx.x % warp::LANES;
    // Tokens whose weights a warp sums: as few as there are buckets for.
    const int32_t each = (n / BUCKETS + warp::LANES) / warp::LANES * warp::LANES;
    __syncthreads();
    for (int i = threadIdx.x; i < BUCKETS; i += THREADS) scratch.buckets[i] = 0;
    __syncthreads();
    Mass total = 0;
    for (int32_t part = threadIdx.x / warp::LANES; int64_t(part) * each < n; part += WARPS) {
        Mass some = 0;
        for (int32_t i = part * each + lane; i < min(part * each + each, n); i += warp::LANES) some += kept.weight(i);
        some = warp::sum(some);
        if (lane == 0) scratch.buckets[part] = some;
        total += some;
    }
    total = joined(lane == 0 ? total : 0, scratch, [](Mass a, Mass b) { return a + b; });
    if (total == 0) return -1;
    Mass enough = __umul64hi(total, draw << 11) + 1;
    const int32_t part = find_bucket(enough, scratch);
    for (int32_t i = part * each + lane;; i += warp::LANES) {  // all lanes of the first warp leave together
        const Mass reached = running_sum(i < n ? kept.weight(i) : 0, lane);
        const uint32_t lanes = __ballot_sync(warp::ALL, reached >= enough);
        if (lanes) return i - lane + first_of(lanes);
        enough -= __shfl_sync(warp::ALL, reached, warp::LANES - 1);
    }
}

// A row of settings.py: what one choice needs.
struct Settings {
    Mass source;                  // the element of the logits where its row begins
    Mass first_octet, octets;     // of the mask; the number plus 1, 0: all tokens are allowed
    Mass first_edit, edits;
    Mass penalty;                 // bits of a float
    Mass scale, top_k, top_p, min_p;  // see filters.py; the scale's bits
    Mass draw;                    // a random number of 53 bits
};

// The tokens that all filters keep, of a row whose highest score is `top`.
__device__ __forceinline__ Kept kept_by(const Settings& filters, const float* row, float top, int32_t n, Scratch& scratch) {
    Kept kept = {row, top, __int_as_float(int32_t(filters.scale)), minus_infinity(), TOKEN_FARTHEST};
    if (filters.top_k > 0 && filters.top_k < Mass(n))
        kept.least = score_of(bound_of<32>(n, filters.top_k, scratch, [=](int32_t i, uint32_t& key) -> Mass {
            key = key_of(row[i]);
            return 1;
        }));
    if (filters.top_p < Mass(1) << 32) {
        const Mass enough = token_part(sum_of(kept, n, scratch), filters.top_p);
        kept.most = bound_of<TOKEN_FRACTION + 6>(
            n, enough, scratch, [=](int32_t i, uint32_t& distance) { return kept.weight(i, distance); });
    }
    kept.most = min(kept.most, token_reach(filters.min_p));
    return kept;
}

// What is done to the score of a token, see edits.py.
struct Edit {
    int32_t token;
    int32_t repeats;
    double lowered;
    float raised;
    int32_t unused;
};

__device__ __forceinline__ float edited(float score, const Edit& edit, float penalty) {
    if (edit.repeats) score = score < 0 ? score * penalty : score / penalty;
    return float(double(score) - edit.lowered) + edit.raised;
}

}  // namespace

// Of each row of logits, `stride` apart, of which n are read: the first of the tokens with the highest, -1 where one is NaN
// or the highest is infinite; that logit; and the sum of the weights at a temperature of 1, 2^40 for the highest. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS, 1) summarise_logits(
    const float* logits, int32_t n, int32_t stride, int32_t scale_low, int32_t scale_high, int32_t* tokens, float* tops,
    Mass* sums) {
    __shared__ Scratch scratch;
    const float* row = logits + int64_t(blockIdx.x) * stride;
    const float top = highest(row, n, scratch);
    int32_t token = n;
    for (int32_t i = threadIdx.x; i < n; i += THREADS)
        if (row[i] == top) token = min(token, i);
    token = joined(token, scratch, [](int32_t a, int32_t b) { return min(a, b); });
    const float scale = __int_as_float(scale_high << 16 | scale_low);
    const Mass sum = is_finite(top) ? sum_of(Kept{row, top, scale, minus_infinity(), TOKEN_FARTHEST}, n, scratch) : 0;
    if (threadIdx.x) return;
    tokens[blockIdx.x] = is_finite(top) ? token : -1;
    tops[blockIdx.x] = top;
    sums[blockIdx.x] = sum;
}

// The scores [n] of each of `settings`: the logits of its row, plus minus infinity for tokens that a mask does not allow or
// does not reach, after the edits. octets: of all masks, the first bit of a byte is the lowest; edits: of all rows, in each
// of different tokens in ascending order. Grid: (n / 512, settings).
extern "C" __global__ void __launch_bounds__(THREADS) prepare_scores(
    const float* logits, const Settings* settings, const uint8_t* octets, const Edit* edits, int32_t n, float* scores) {
    const Settings row = settings[blockIdx.y];
    const int32_t start = blockIdx.x * THREADS, i = start + threadIdx.x;
    logits += row.source;
    scores += int64_t(blockIdx.y) * n;
    octets += row.first_octet;
    edits += row.first_edit;
    if (i < n) {
        const bool is_allowed = row.octets == 0 || (Mass(i / 8) + 1 < row.octets && octets[i / 8] >> (i % 8) & 1);
        scores[i] = logits[i] + (is_allowed ? 0 : minus_infinity());
    }
    __syncthreads();
    int32_t low = 0, high = int32_t(row.edits);  // the first edit of this block's tokens is among low..high
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (edits[middle].token < start) low = middle + 1;
        else high = middle;
    }
    const float penalty = __int_as_float(int32_t(row.penalty));
    const int32_t end = min(start + THREADS, n);  // an edited token may be padding behind the vocabulary
    for (int32_t each = low + threadIdx.x; each < int32_t(row.edits) && edits[each].token < end; each += THREADS)
        scores[edits[each].token] = edited(scores[edits[each].token], edits[each], penalty);
}

// Draws a token from each row of scores [rows, n]; -1 where a score is NaN or the highest is infinite. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS, 1) choose_tokens(
    const float* scores, const Settings* settings, int32_t n, int32_t* tokens) {
    __shared__ Scratch scratch;
    const float* row = scores + int64_t(blockIdx.x) * n;
    const Settings filters = settings[blockIdx.x];
    const float top = highest(row, n, scratch);
    if (!is_finite(top)) {
        if (threadIdx.x == 0) tokens[blockIdx.x] = -1;
        return;
    }
    const int32_t token = drawn(kept_by(filters, row, top, n, scratch), n, filters.draw, scratch);
    if (threadIdx.x == 0) tokens[blockIdx.x] = token;
}

// The sum of the weights, and behind it each token's, found [1 + n], 0 where a filter drops it; all are 0 where a score is NaN
// or the highest is infinite. scores: [n]; settings: one row. Grid: (1).
extern "C" __global__ void __launch_bounds__(THREADS, 1) weigh_tokens(
    const float* scores, const Settings* settings, int32_t n, Mass* found) {
    __shared__ Scratch scratch;
    const float top = highest(scores, n, scratch);
    Kept kept = {scores, 0, 0, minus_infinity(), 0};
    if (is_finite(top)) kept = kept_by(*settings, scores, top, n, scratch);
    Mass total = 0;
    for (int32_t i = threadIdx.x; i < n; i += THREADS) total += found[1 + i] = is_finite(top) ? kept.weight(i) : 0;
    total = joined(total, scratch, [](Mass a, Mass b) { return a + b; });
    if (threadIdx.x == 0) found[0] = total;
}

// What the probability of each token in `target` exceeds that in `draft` by, times 2^50, 0 where it does not; or, if `token`
// is one, the weights of `target` without that token's. All as weigh_tokens writes them, but that found[0] is the sum of
// `target`. Grid: (n / 512).
extern "C" __global__ void __launch_bounds__(THREADS) subtract_weights(
    const Mass* target, const Mass* draft, int32_t n, int32_t token, Mass* found) {
    const int32_t i = blockIdx.x * THREADS + threadIdx.x;
    if (i == 0) found[0] = target[0];
    if (i >= n) return;
    const Mass p = token_probability(target[1 + i], target[0]), q = token_probability(draft[1 + i], draft[0]);
    found[1 + i] = token < n ? (i == token ? 0 : target[1 + i]) : p > q ? p - q : 0;
}

// Draws a token in proportion to weights [1 + n], as weigh_tokens writes them; the sum is not read. -1 if all are 0. Grid: (1).
extern "C" __global__ void __launch_bounds__(THREADS, 1) draw_token(
    const Mass* weights, int32_t n, int32_t draw_low, int32_t draw_high, int32_t* token) {
    __shared__ Scratch scratch;
    const int32_t found = drawn(Given{weights + 1}, n, Mass(draw_high) << 27 | Mass(draw_low), scratch);
    if (threadIdx.x == 0) *token = found;
}

// Of each row of logits, `stride` apart, of which n are read: the `count` tokens with the highest, the highest first and of equal
// ones the first, and their logits, both [rows, count], and the sum of the weights at a temperature of 1. The first token is -1
// where one is NaN or the highest is infinite. count: at most n, and MOST_LIKELIEST. Grid: (rows).
extern "C" __global__ void __launch_bounds__(THREADS, 1) likeliest_tokens(
    const float* logits, int32_t n, int32_t stride, int32_t count, int32_t scale_low, int32_t scale_high, int32_t* tokens,
    float* highest_logits, Mass* sums) {
    __shared__ Scratch scratch;
    __shared__ int32_t found_tokens[MOST_LIKELIEST];
    __shared__ float found_logits[MOST_LIKELIEST];
    __shared__ int32_t found;
    const float* row = logits + int64_t(blockIdx.x) * stride;
    tokens += int64_t(blockIdx.x) * count;
    highest_logits += int64_t(blockIdx.x) * count;
    const float top = highest(row, n, scratch);
    if (!is_finite(top)) {
        for (int i = threadIdx.x; i < count; i += THREADS) {
            tokens[i] = -1;
            highest_logits[i] = top;
        }
        if (threadIdx.x == 0) sums[blockIdx.x] = 0;
        return;
    }
    const float scale = __int_as_float(scale_high << 16 | scale_low);
    const Mass sum = sum_of(Kept{row, top, scale, minus_infinity(), TOKEN_FARTHEST}, n, scratch);
    const float least = score_of(bound_of<32>(n, Mass(count), scratch, [=](int32_t i, uint32_t& key) -> Mass {
        key = key_of(row[i]);
        return 1;
    }));
    int32_t higher = 0;
    for (int32_t i = threadIdx.x; i < n; i += THREADS) higher += row[i] > least;
    higher = joined(higher, scratch, [](int32_t a, int32_t b) { return a + b; });
    // Of the tokens with the lowest of these logits, the last that is among them.
    const uint32_t last = bound_of<32>(n, Mass(count - higher), scratch, [=](int32_t i, uint32_t& key) -> Mass {
        key = uint32_t(i);
        return row[i] == least;
    });
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        if (row[i] > least || (row[i] == least && uint32_t(i) <= last)) {
            const int32_t place = atomicAdd(&found, 1);
            found_tokens[place] = i;
            found_logits[place] = row[i];
        }
    }
    __syncthreads();
    for (int each = threadIdx.x; each < count; each += THREADS) {
        int32_t before = 0;
        for (int other = 0; other < count; ++other)
            before += found_logits[other] > found_logits[each] ||
                      (found_logits[other] == found_logits[each] && found_tokens[other] < found_tokens[each]);
        tokens[before] = found_tokens[each];
        highest_logits[before] = found_logits[each];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
