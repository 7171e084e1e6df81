// The choice of a token by its weight; reference.py says what a distance and a weight are.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

// As filters.py says; `top` is the highest score.
struct TokenFilters {
    float top, scale;
    int64_t top_k;
    uint64_t top_p, min_p;
};

struct TokenChoiceKernel {
    // Returns the token at draw / 2^53 of the sum of all weights.
    //
    // scores: [n] float32 without NaN, the highest finite; scratch: token_choice_scratch(n) words
    int64_t (*choose)(const float* scores, int64_t n, const TokenFilters* filters, uint64_t draw, uint64_t* scratch);

    // Writes the tokens with the top-k highest scores, the first of equal ones, in the order of the tokens, to tokens [top_k],
    // and the sum of all weights; returns how many tokens that are: n at most.
    int64_t (*likeliest)(const float* scores, int64_t n, const TokenFilters* filters, uint32_t* tokens, uint64_t* total,
                         uint64_t* scratch);

    // Writes the weight of each token to weights [n], 0 where a filter leaves it out.
    void (*weigh)(const float* scores, int64_t n, const TokenFilters* filters, uint64_t* weights, uint64_t* scratch);
};

// The words of 64 bits that a kernel needs, of which it uses as many as tokens may be drawn: for each token its weight, id
// and distance, and copies of them.
[[maybe_unused]] static constexpr int64_t token_choice_scratch(int64_t n) { return 4 * n + 1; }

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(TokenChoiceKernel, token_choice_kernel)
