#include "plugins/int_gelu/kernel.h"

#include "plugins/cpu/simd_gelu.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// What 2·LANES neighbouring channels are computed with.
struct Channels {
    GeluVectors gelu;
    I16 zero_point;
    Requantizer inner, low, high;
};

template <bool EXACT>
INTAGLIO_SIMD I32 apply(I32 x, const Requantizer& r) {
    return EXACT ? requantize_exact(x, r) : requantize(x, r);
}

template <bool EXACT>
INTAGLIO_SIMD I16 gelu(I32 low, I32 high, const Channels& c) {
    const I16 v = gelu(narrow(apply<EXACT>(low, c.inner), apply<EXACT>(high, c.inner)), c.gelu);
    return add_saturated(narrow(apply<EXACT>(low32(v), c.low), apply<EXACT>(high32(v), c.high)), c.zero_point);
}

INTAGLIO_SIMD I32 load_low(const int32_t* p, int n) { return load32(p, n < LANES ? n : LANES); }
INTAGLIO_SIMD I32 load_high(const int32_t* p, int n) { return n > LANES ? load32(p + LANES, n - LANES) : set32(0); }

// Down the rows of n channels; rows of x and y lie `stride` elements apart.
template <bool EXACT>
void down(const int32_t* x, int64_t rows, int64_t stride, int n, const Channels& c, int8_t* y) {
    if (n == 2 * LANES) {
        for (int64_t row = 0; row < rows; ++row, x += stride, y += stride) {
            store_saturated(y, gelu<EXACT>(load32(x), load32(x + LANES), c));
        }
    } else {
        for (int64_t row = 0; row < rows; ++row, x += stride, y += stride) {
            store_saturated(y, gelu<EXACT>(load_low(x, n), load_high(x, n), c), n);
        }
    }
}

void gelu_rows(const int32_t* x, int64_t rows, int64_t channels, const GeluConstants& constants,
               const int32_t* multiplier, const int32_t* shift, int out_zero_point, int8_t* y) {
    Channels group;
    group.zero_point = set16(int16_t(out_zero_point));
    group.gelu = gelu_vectors(constants);
    group.inner = requantizer(set32(constants.multiplier), set32(constants.shift));
    for (int64_t c = 0; c < channels; c += 2 * LANES) {
        const int n = int(channels - c < 2 * LANES ? channels - c : 2 * LANES);
        group.low = requantizer(load_low(multiplier + c, n), load_low(shift + c, n));
        group.high = requantizer(load_high(multiplier + c, n), load_high(shift + c, n));
        const bool exact = is_exact(group.inner) && is_exact(group.low) && is_exact(group.high);
        (exact ? down<true> : down<false>)(x + c, rows, channels, n, group, y + c);
    }
}

}  // namespace

const IntGeluKernel int_gelu_kernel = {gelu_rows};

}  // namespace intaglio::INTAGLIO_ISA
