#include "plugins/requantize/kernel.h"

#include "plugins/cpu/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

INTAGLIO_SIMD void put(int8_t* y, I32 v) { store_saturated(y, v); }
INTAGLIO_SIMD void put(int8_t* y, I32 v, int n) { store_saturated(y, v, n); }
INTAGLIO_SIMD void put(int32_t* y, I32 v) { store(y, clip16(v)); }
INTAGLIO_SIMD void put(int32_t* y, I32 v, int n) { store(y, clip16(v), n); }

// Down the rows for each vector of channels, so that its parameters are prepared once.
template <typename T>
void per_channel(const int32_t* x, int64_t rows, int64_t channels, const int32_t* multiplier, const int32_t* shift, T* y) {
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES) {
        const Requantizer r = requantizer(load32(multiplier + c), load32(shift + c));
        for (int64_t row = 0; row < rows; ++row) {
            put(y + row * channels + c, requantize(load32(x + row * channels + c), r));
        }
    }
    if (const int n = int(channels - c); n > 0) {
        const Requantizer r = requantizer(load32(multiplier + c, n), load32(shift + c, n));
        for (int64_t row = 0; row < rows; ++row) {
            put(y + row * channels + c, requantize(load32(x + row * channels + c, n), r), n);
        }
    }
}

template <typename T>
void uniform(const int32_t* x, int64_t count, int32_t multiplier, int32_t shift, T* y) {
    const Requantizer r = requantizer(set32(multiplier), set32(shift));
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) put(y + i, requantize(load32(x + i), r));
    if (const int n = int(count - i); n > 0) put(y + i, requantize(load32(x + i, n), r), n);
}

}  // namespace

const RequantizeKernel requantize_kernel = {per_channel<int8_t>, per_channel<int32_t>, uniform<int8_t>, uniform<int32_t>};

}  // namespace intaglio::INTAGLIO_ISA
