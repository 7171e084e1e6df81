// The choice of a token: passes over all tokens that compilers turn into vectors, and few tokens in scalars.
//
// Top-k keeps the tokens of at least some score, and top-p and min-p those of at most some distance, as weights fall with
// it. What is kept, which is little as a rule, is collected in the order of the tokens.

#include "plugins/native/token_choice/kernel.h"

#include <cstddef>

#include "plugins/native/token_choice/arithmetic.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t FEW = 128;   // tokens that are left out together
constexpr int64_t GROUP = 16;  // scores of which the search for the top k looks at the largest first
constexpr float LOWEST = -__builtin_inff();

// Writes the distances of up to FEW tokens, FARTHEST, where the weight is 0, beyond `most`; returns whether any is within.
// An array between distances and weights keeps compilers from branches, which they do not turn into vectors.
bool distances_within(const float* scores, int64_t n, const TokenFilters& filters, uint32_t most, uint32_t* distances) {
    int32_t any = 0;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t distance = token_distance(filters.top, scores[i], filters.scale);
        distances[i] = distance <= most ? distance : TOKEN_FARTHEST;
        any |= distances[i] < TOKEN_FARTHEST;
    }
    return any;
}

uint64_t sum(const float* scores, int64_t n, const TokenFilters& filters, uint32_t most) {
    uint64_t total = 0;
    for (int64_t start = 0; start < n; start += FEW) {
        const int64_t length = n - start < FEW ? n - start : FEW;
        uint32_t distances[FEW];
        if (!distances_within(scores + start, length, filters, most, distances)) continue;
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

// Writes the scores of at least `least`, and their tokens unless it is nullptr; returns how many they are.
int64_t at_least(const float* scores, int64_t n, float least, float* kept, uint32_t* tokens) {
    int64_t found = 0;
    for (int64_t start = 0; start < n; start += FEW) {
        const int64_t length = n - start < FEW ? n - start : FEW;
        int32_t any = 0;
        for (int64_t i = 0; i < length; ++i) any |= scores[start + i] >= least;
        if (!any) continue;
        for (int64_t i = start; i < start + length; ++i) {
            kept[found] = scores[i];
            if (tokens) tokens[found] = uint32_t(i);
            found += scores[i] >= least;
        }
    }
    return found;
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
    const int64_t found = at_least(scores, n, bound, scratch, nullptr);
    return kth_largest_of_few(scratch, found, k);
}

// The place of a draw in the sum of weights, below it.
inline uint64_t place_of(uint64_t total, uint64_t draw) { return uint64_t((unsigned __int128)(total) * draw >> 53); }

// The choice where only min-p leaves tokens out: sums of a few at once, and then a search where the place is.
int64_t choose_of_most(const float* scores, int64_t n, const TokenFilters& filters, uint64_t draw, uint64_t* sums) {
    const uint32_t most = token_reach(filters.min_p);
    uint64_t total = 0;
    for (int64_t start = 0; start < n; start += FEW) {
        sums[start / FEW] = sum(scores + start, n - start < FEW ? n - start : FEW, filters, most);
        total += sums[start / FEW];
    }
    uint64_t place = place_of(total, draw);
    int64_t block = 0;
    for (; place >= sums[block]; ++block) place -= sums[block];
    for (int64_t i = block * FEW;; ++i) {
        uint32_t distance;
        distances_within(scores + i, 1, filters, most, &distance);
        const uint64_t weight = token_weight(distance);
        if (place < weight) return i;
        place -= weight;
    }
}

// The tokens that may be drawn, in their order, and as many as `count`. Each array holds n.
struct Candidates {
    uint64_t* weights;
    uint32_t *tokens, *distances;
    int64_t count;

    // scratch: three words for each token
    Candidates(uint64_t* scratch, int64_t n)
        : weights(scratch), tokens(reinterpret_cast<uint32_t*>(scratch + n)), distances(tokens + n), count(0) {}
};

// Collects the tokens whose weight is not 0 within the distance `most`. `tokens`: their ids, or nullptr for 0 to n - 1.
Candidates collected(const float* scores, const uint32_t* tokens, int64_t n, const TokenFilters& filters, uint32_t most,
                     uint64_t* scratch) {
    Candidates found(scratch, n);
    int64_t count = 0;
    for (int64_t start = 0; start < n; start += FEW) {
        const int64_t length = n - start < FEW ? n - start : FEW;
        uint32_t some[FEW];
        // There are none in most places, if the model is sure.
        if (!distances_within(scores + start, length, filters, most, some)) continue;
        for (int64_t i = 0; i < length; ++i) {
            found.tokens[count] = tokens ? tokens[start + i] : uint32_t(start + i);
            found.distances[count] = some[i];
            count += some[i] < TOKEN_FARTHEST;
        }
    }
    found.count = count;
    for (int64_t i = 0; i < count; ++i) found.weights[i] = token_weight(found.distances[i]);
    return found;
}

// The smallest distance within which the weights of candidates add up to `enough`, which all of them do.
// weights, distances: of the candidates, in memory that is changed.
uint32_t nucleus(uint64_t* weights, uint32_t* distances, int64_t left, uint64_t enough) {
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

// The tokens that all filters keep. scratch: token_choice_scratch(n) words
Candidates candidates(const float* scores, int64_t n, const TokenFilters& filters, uint64_t* scratch) {
    uint32_t most = token_reach(filters.min_p);
    const uint32_t* tokens = nullptr;
    uint64_t* copies = scratch + 2 * n;  // of what is found, which is as much at most
    if (filters.top_k > 0 && filters.top_k < n) {
        float* kept = reinterpret_cast<float*>(copies + n);
        uint32_t* ids = reinterpret_cast<uint32_t*>(kept + n);
        const float least = kth_largest(scores, n, filters.top_k, kept);
        n = at_least(scores, n, least, kept, ids);
        scores = kept;
        tokens = ids;
    }
    const bool has_nucleus = filters.top_p < uint64_t(1) << 32;
    uint64_t enough = 0;
    uint32_t reach = most;  // min-p comes last: it leaves out nothing that top-p counts
    if (has_nucleus) {
        const uint64_t total = sum(scores, n, filters, TOKEN_FARTHEST);
        enough = token_part(total, filters.top_p);
        // Lighter tokens than this add up to less than what may be missing.
        reach = token_reach(enough < total ? (total - enough) / uint64_t(n) : 0);
    }
    const Candidates found = collected(scores, tokens, n, filters, reach, scratch);
    if (!has_nucleus) return found;
    uint32_t* distances = reinterpret_cast<uint32_t*>(copies + found.count);
    __builtin_memcpy(copies, found.weights, std::size_t(found.count) * sizeof *copies);
    __builtin_memcpy(distances, found.distances, std::size_t(found.count) * sizeof *distances);
    const uint32_t bound = nucleus(copies, distances, found.count, enough);
    if (bound < most) most = bound;
    for (int64_t i = 0; i < found.count; ++i) found.weights[i] = found.distances[i] <= most ? found.weights[i] : 0;
    return found;
}

// Whether only min-p leaves tokens out.
bool keeps_most(const TokenFilters& filters) { return filters.top_k <= 0 && filters.top_p >= uint64_t(1) << 32; }

int64_t choose(const float* scores, int64_t n, const TokenFilters* filters, uint64_t draw, uint64_t* scratch) {
    if (keeps_most(*filters)) return choose_of_most(scores, n, *filters, draw, scratch);
    const Candidates found = candidates(scores, n, *filters, scratch);
    uint64_t total = 0;
    for (int64_t i = 0; i < found.count; ++i) total += found.weights[i];
    uint64_t place = place_of(total, draw);
    int64_t i = 0;
    for (; place >= found.weights[i]; ++i) place -= found.weights[i];
    return found.tokens[i];
}

int64_t likeliest(const float* scores, int64_t n, const TokenFilters* filters, uint32_t* tokens, uint64_t* total,
                  uint64_t* scratch) {
    *total = sum(scores, n, *filters, TOKEN_FARTHEST);
    const int64_t count = filters->top_k < n ? filters->top_k : n;
    if (count == 0) return 0;
    float* kept = reinterpret_cast<float*>(scratch);
    uint32_t* ids = reinterpret_cast<uint32_t*>(scratch + n);
    const float least = kth_largest(scores, n, count, kept);
    const int64_t found = at_least(scores, n, least, kept, ids);
    int64_t equal = count, written = 0;  // of the last of them, how many are taken
    for (int64_t i = 0; i < found; ++i) equal -= kept[i] > least;
    for (int64_t i = 0; i < found; ++i) {
        if (kept[i] > least || equal-- > 0) tokens[written++] = ids[i];
    }
    return count;
}

void weigh(const float* scores, int64_t n, const TokenFilters* filters, uint64_t* weights, uint64_t* scratch) {
    if (keeps_most(*filters)) {
        const uint32_t most = token_reach(filters->min_p);
        for (int64_t start = 0; start < n; start += FEW) {
            const int64_t length = n - start < FEW ? n - start : FEW;
            uint32_t distances[FEW];
            distances_within(scores + start, length, *filters, most, distances);
            for (int64_t i = 0; i < length; ++i) weights[start + i] = token_weight(distances[i]);
        }
        return;
    }
    const Candidates found = candidates(scores, n, *filters, scratch);
    __builtin_memset(weights, 0, std::size_t(n) * sizeof *weights);
    for (int64_t i = 0; i < found.count; ++i) weights[found.tokens[i]] = found.weights[i];
}

}  // namespace

const TokenChoiceKernel token_choice_kernel = {choose, likeliest, weigh};

}  // namespace intaglio::INTAGLIO_ISA
