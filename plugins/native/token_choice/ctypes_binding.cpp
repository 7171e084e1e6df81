// What plugins/native/token_choice/__init__.py calls.

#include <cstdint>
#include <vector>

#include "plugins/native/token_choice/kernel.h"

namespace {

// Memory that a thread keeps from one token to the next: new pages of the system cost more than the choice.
uint64_t* scratch(int64_t n) {
    static thread_local std::vector<uint64_t> kept;
    const auto words = std::size_t(intaglio::token_choice_scratch(n));
    if (kept.size() < words) kept.resize(words);
    return kept.data();
}

}  // namespace

// scores: [n] float32; returns -1 where there is no memory
extern "C" __attribute__((visibility("default"))) int64_t intaglio_choose_token(int isa, const float* scores, int64_t n,
                                                                               const intaglio::TokenFilters* filters,
                                                                               uint64_t draw) try {
    return intaglio::token_choice_kernel(intaglio::Isa(isa)).choose(scores, n, filters, draw, scratch(n));
} catch (const std::bad_alloc&) {
    return -1;
}

// scores: [n] float32; tokens: [top_k]; returns how many were written, -1 where there is no memory
extern "C" __attribute__((visibility("default"))) int64_t intaglio_likeliest_tokens(int isa, const float* scores, int64_t n,
                                                                                   const intaglio::TokenFilters* filters,
                                                                                   uint32_t* tokens, uint64_t* total) try {
    return intaglio::token_choice_kernel(intaglio::Isa(isa)).likeliest(scores, n, filters, tokens, total, scratch(n));
} catch (const std::bad_alloc&) {
    return -1;
}

// scores: [n] float32; weights: [n]; returns whether there was memory
extern "C" __attribute__((visibility("default"))) bool intaglio_weigh_tokens(int isa, const float* scores, int64_t n,
                                                                            const intaglio::TokenFilters* filters,
                                                                            uint64_t* weights) try {
    intaglio::token_choice_kernel(intaglio::Isa(isa)).weigh(scores, n, filters, weights, scratch(n));
    return true;
} catch (const std::bad_alloc&) {
    return false;
}
