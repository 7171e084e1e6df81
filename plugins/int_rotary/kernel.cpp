#include "plugins/int_rotary/kernel.h"

#include "plugins/cpu/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

INTAGLIO_SIMD I32 unit(I32 v) { return min(max(v, set32(-(1 << 14))), set32(1 << 14)); }

// n neighbouring channels of both halves of every head of a row.
INTAGLIO_SIMD void turn(const int32_t* x, I32 c, I32 s, int64_t heads, int64_t half, int n, const Requantizer& r, int8_t* y) {
    for (int64_t head = 0; head < heads; ++head, x += 2 * half, y += 2 * half) {
        const I32 first = clip16(n == LANES ? load32(x) : load32(x, n));
        const I32 second = clip16(n == LANES ? load32(x + half) : load32(x + half, n));
        const I32 a = requantize(first * c - second * s, r), b = requantize(second * c + first * s, r);
        if (n == LANES) {
            store_saturated(y, a);
            store_saturated(y + half, b);
        } else {
            store_saturated(y, a, n);
            store_saturated(y + half, b, n);
        }
    }
}

void rotate(const int32_t* x, const int32_t* cosine, const int32_t* sine, int64_t rows, int64_t heads, int64_t half,
            int32_t multiplier, int32_t shift, int8_t* y) {
    const Requantizer r = requantizer(set32(multiplier), set32(shift));
    for (int64_t row = 0; row < rows; ++row, x += 2 * heads * half, y += 2 * heads * half, cosine += half, sine += half) {
        int64_t i = 0;
        for (; i + LANES <= half; i += LANES) {
            turn(x + i, unit(load32(cosine + i)), unit(load32(sine + i)), heads, half, LANES, r, y + i);
        }
        if (const int n = int(half - i); n > 0) {
            turn(x + i, unit(load32(cosine + i, n)), unit(load32(sine + i, n)), heads, half, n, r, y + i);
        }
    }
}

}  // namespace

const IntRotaryKernel int_rotary_kernel = {rotate};

}  // namespace intaglio::INTAGLIO_ISA
