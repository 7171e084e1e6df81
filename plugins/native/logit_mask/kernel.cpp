// A mask of bits applied to logits: every byte becomes eight addends, 0 or minus infinity.

#include "plugins/native/logit_mask/kernel.h"

#include <cstddef>
#include <cstring>

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int BITS = 8;  // of a byte, and lanes of a vector
constexpr int32_t MINUS_INFINITY = int32_t(0xFF800000u);

typedef float Floats __attribute__((vector_size(BITS * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(BITS * sizeof(int32_t))));

// Eight logits plus the addends of a byte.
inline void add(const float* logits, uint8_t octet, float* masked) {
    const Ints bit = {1, 2, 4, 8, 16, 32, 64, 128};
    const Ints forbidden = (bit & (Ints{} + int32_t(octet))) == 0;  // all bits of a lane, or none
    const Ints addends = forbidden & MINUS_INFINITY;
    Floats values;
    std::memcpy(&values, logits, sizeof values);
    values += (Floats)addends;  // the same bits
    std::memcpy(masked, &values, sizeof values);
}

void apply(const float* logits, const uint8_t* octets, int64_t n, float* masked) {
    int64_t i = 0;
    for (; i + BITS <= n; i += BITS) add(logits + i, octets[i / BITS], masked + i);
    if (i == n) return;
    float last[BITS] = {};
    std::memcpy(last, logits + i, std::size_t(n - i) * sizeof(float));
    add(last, octets[i / BITS], last);
    std::memcpy(masked + i, last, std::size_t(n - i) * sizeof(float));
}

}  // namespace

const LogitMaskKernel logit_mask_kernel = {apply};

}  // namespace intaglio::INTAGLIO_ISA
