// The choice of a token: passes over all tokens that compilers turn into vectors, and few tokens in scalars.
//
// Any filters keep the tokens that have at least some score and at most some distance, as weights fall with the distance.
// So each filter only finds its bound, and one last pass sums, or writes, the weights within.

#include "plugins/native/token_choice/kernel.h"

#include "plugins/native/token_choice/arithmetic.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t FEW = 128;   // tokens that are left out together
constexpr int64_t GROUP = 16;  // scores of which the search for the top k looks at the largest first
constexpr float LOWEST = -__builtin_inff();

struct Bounds {
    float least;    // score
    uint32_t most;  // distance
};

// Writes the distances of up to FEW tokens, FARTHEST, where the weight is 0, outside of `bounds`; returns whether any is
// within. An array between distances and weights keeps compilers from branches, which they do not turn into vectors.
bool distances_within(const float* scores, int64_t n, const TokenFilters& filters, const Bounds& bounds, uint32_t* distances) {
    int32_t any = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t distance = token_distance(filters.top, scores[i], filters.scale);
        const bool is_within = (scores[i] >= bounds.least) & (distance <= bounds.most);
        distances[i] = is_within ? distance : TOKEN_FARTHEST;
        any |= is_within;
    }
    return any;
}

uint64_t sum(const float* scores, int64_t n, const TokenFilters& filters, const Bounds& bounds) {
    uint64_t total = 0;
    for (int64_t start = 0; start < n; start += FEW) {
        const int64_t length = n - start < FEW ? n - start : FEW;
        uint32_t distances[FEW];
        if (!distances_within(scores + start, length, filters, bounds, distances)) continue;
        for (int64_t i = 0; i < length; ++i) total += token_weight(distances[i]);
    }
    return total;
}

// Scores in the order of integers: negative ones have their bits below the sign inverted.
inline int32_t ordered(float score) {
    int32_t bits;
    __builtin_memcpy(&bits, &score, sizeof bits);
    return bits ^ int32_t(uint32_t(bits >> 31) >> 1);
}

// The k-th largest of n scores, 1 <= k <= n: the largest bound that k of them reach, bit by bit.
float kth_largest_of_few(const float* scores, int64_t n, int64_t k) {
    uint32_t bound = 0;  // above the lowest integer
    for (int bit = 31; bit >= 0; --bit) {
        const uint32_t tried = bound | 1u << bit;
        const int32_t limit = int32_t(tried ^ 0x80000000u);
        int64_t reach = 0;
        for (int64_t i = 0; i < n; ++i) reach += ordered(scores[i]) >= limit;
        if (reach >= k) bound = tried;
    }
    const int32_t order = int32_t(bound ^ 0x80000000u), bits = order ^ int32_t(uint32_t(order >> 31) >> 1);
    float score;
    __builtin_memcpy(&score, &bits, sizeof score);
    return score;
}

// The same for many: k groups have a largest score of at least some bound, so the k largest scores are not below it.
// scratch: [n]
float kth_largest(const float* scores, int64_t n, int64_t k, float* scratch) {
    const int64_t groups = n / GROUP;
    if (k >= groups) return kth_largest_of_few(scores, n, k);
    for (int64_t g = 0; g < groups; ++g) scratch[g] = scores[g];
    for (int64_t part = 1; part < GROUP; ++part)
        for (int64_t g = 0; g < groups; ++g) {
            const float score = scores[part * groups + g];
            scratch[g] = score > scratch[g] ? score : scratch[g];
        }
    const float bound = kth_largest(scratch, groups, k, scratch + groups);
    int64_t found = 0;
    for (int64_t start = 0; start < n; start += FEW) {
        const int64_t length = n - start < FEW ? n - start : FEW;
        int32_t any = 0;
        for (int64_t i = 0; i < length; ++i) any |= scores[start + i] >= bound;
        if (!any) continue;
        for (int64_t i = start; i < start + length; ++i)
            if (scores[i] >= bound) scratch[found++] = scores[i];
    }
    return kth_largest_of_few(scratch, found, k);
}

// The largest distance whose weight is at least `weight`, at most 2^40.
uint32_t distance_of(uint64_t weight) {
    uint32_t near = 0, far = TOKEN_FARTHEST + 1;  // which is too far, unless the weight is 0
    while (far - near > 1) {
        const uint32_t middle = near + (far - near) / 2;
        (token_weight(middle) >= weight ? near : far) = middle;
    }
    return near;
}

// The tokens within `bounds`: their weights and distances, in `weights` and `distances`. Returns how many they are.
int64_t candidates(const float* scores, int64_t n, const TokenFilters& filters, const Bounds& bounds, uint64_t* weights,
                   uint32_t* distances) {
    int64_t found = 0;
    for (int64_t start = 0; start < n; start += FEW) {
        const int64_t length = n - start < FEW ? n - start : FEW;
        uint32_t some[FEW];
        // There are none in most places, if the model is sure.
        if (!distances_within(scores + start, length, filters, bounds, some)) continue;
        for (int64_t i = 0; i < length; ++i) {
            distances[found] = some[i];
            found += some[i] < TOKEN_FARTHEST;
        }
    }
    for (int64_t i = 0; i < found; ++i) weights[i] = token_weight(distances[i]);
    return found;
}

// The smallest distance within which the weights add up to top-p's part of all within `bounds`.
uint32_t nucleus(const float* scores, int64_t n, const TokenFilters& filters, const Bounds& bounds, uint64_t* scratch) {
    const uint64_t total = sum(scores, n, filters, bounds);
    uint64_t enough = token_part(total, filters.top_p);
    // Lighter tokens than this add up to less than what may be missing.
    const uint32_t limit = distance_of(enough < total ? (total - enough) / uint64_t(n) : 0);
    uint64_t* weights = scratch;
    uint32_t* distances = reinterpret_cast<uint32_t*>(scratch + n + 1);
    int64_t left = candidates(scores, n, filters, {bounds.least, limit}, weights, distances);
    uint32_t bound = 0;  // below this distance there is not enough
    for (int bit = TOKEN_FRACTION + 5; bit >= 0 && left > 0; --bit) {
        const uint32_t middle = bound | 1u << bit;
        uint64_t nearer = 0;
        for (int64_t i = 0; i < left; ++i) nearer += weights[i] & -uint64_t(distances[i] < middle);
        const bool is_farther = nearer < enough;
        if (is_farther) {
            bound = middle;
            enough -= nearer;
        }
        int64_t kept = 0;  // the others are on the wrong side
        for (int64_t i = 0; i < left; ++i) {
            const uint32_t distance = distances[i];
            distances[kept] = distance;
            weights[kept] = weights[i];
            kept += (distance >= middle) == is_farther;
        }
        left = kept;
    }
    return bound;
}

Bounds bounds_of(const float* scores, int64_t n, const TokenFilters& filters, uint64_t* scratch) {
    Bounds bounds = {LOWEST, TOKEN_FARTHEST};
    if (filters.top_k > 0 && filters.top_k < n)
        bounds.least = kth_largest(scores, n, filters.top_k, reinterpret_cast<float*>(scratch));
    if (filters.top_p < uint64_t(1) << 32) bounds.most = nucleus(scores, n, filters, bounds, scratch);
    const uint32_t heavy = distance_of(filters.min_p);
    if (heavy < bounds.most) bounds.most = heavy;
    return bounds;
}

int64_t choose(const float* scores, int64_t n, const TokenFilters* filters, uint64_t draw, uint64_t* scratch) {
    const Bounds bounds = bounds_of(scores, n, *filters, scratch);
    uint64_t total = 0;
    for (int64_t start = 0; start < n; start += FEW) {
        scratch[start / FEW] = sum(scores + start, n - start < FEW ? n - start : FEW, *filters, bounds);
        total += scratch[start / FEW];
    }
    uint64_t place = uint64_t((unsigned __int128)(total) * draw >> 53);
    int64_t block = 0;
    for (; place >= scratch[block]; ++block) place -= scratch[block];
    for (int64_t i = block * FEW;; ++i) {
        uint32_t distance;
        distances_within(scores + i, 1, *filters, bounds, &distance);
        const uint64_t weight = token_weight(distance);
        if (place < weight) return i;
        place -= weight;
    }
}

void weigh(const float* scores, int64_t n, const TokenFilters* filters, uint64_t* weights, uint64_t* scratch) {
    const Bounds bounds = bounds_of(scores, n, *filters, scratch);
    for (int64_t start = 0; start < n; start += FEW) {
        const int64_t length = n - start < FEW ? n - start : FEW;
        uint32_t distances[FEW];
        distances_within(scores + start, length, *filters, bounds, distances);
        for (int64_t i = 0; i < length; ++i) weights[start + i] = token_weight(distances[i]);
    }
}

}  // namespace

const TokenChoiceKernel token_choice_kernel = {choose, weigh};

}  // namespace intaglio::INTAGLIO_ISA
