#include "plugins/int_add/kernel.h"

#include "plugins/cpu/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

INTAGLIO_SIMD void put(int8_t* sum, I32 v) { store_saturated(sum, v); }
INTAGLIO_SIMD void put(int8_t* sum, I32 v, int n) { store_saturated(sum, v, n); }
INTAGLIO_SIMD void put(int32_t* sum, I32 v) { store(sum, v); }
INTAGLIO_SIMD void put(int32_t* sum, I32 v, int n) { store(sum, v, n); }

template <typename T>
INTAGLIO_SIMD I32 take(const T* p, int64_t step) { return step == 0 ? set32(*p) : load32(p); }
template <typename T>
INTAGLIO_SIMD I32 take(const T* p, int64_t step, int n) { return step == 0 ? set32(*p) : load32(p, n); }

// Down the rows for each vector of channels, so that their factors are prepared once.
template <typename X, typename Y, typename T>
void add(const AddOperand& x, const AddOperand& y, int64_t rows, int64_t channels, const AddFactors& factors, void* sum) {
    for (int64_t c = 0; c < channels; c += LANES) {
        const int n = int(channels - c < LANES ? channels - c : LANES);
        const ScaledSum scaled = scaled_sum_of(load32(factors.x_multiplier + c, n), load32(factors.y_multiplier + c, n),
                                               load32(factors.shift + c, n));
        const X* a = static_cast<const X*>(x.data) + c * x.step;
        const Y* b = static_cast<const Y*>(y.data) + c * y.step;
        T* out = static_cast<T*>(sum) + c;
        if (n == LANES) {
            for (int64_t row = 0; row < rows; ++row, a += x.row_stride, b += y.row_stride, out += channels) {
                put(out, scaled_sum16(take(a, x.step), take(b, y.step), scaled));
            }
        } else {
            for (int64_t row = 0; row < rows; ++row, a += x.row_stride, b += y.row_stride, out += channels) {
                put(out, scaled_sum16(take(a, x.step, n), take(b, y.step, n), scaled), n);
            }
        }
    }
}

}  // namespace

const IntAddKernel int_add_kernel = {{
    {{add<int32_t, int32_t, int32_t>, add<int32_t, int32_t, int8_t>},
     {add<int32_t, int8_t, int32_t>, add<int32_t, int8_t, int8_t>}},
    {{add<int8_t, int32_t, int32_t>, add<int8_t, int32_t, int8_t>},
     {add<int8_t, int8_t, int32_t>, add<int8_t, int8_t, int8_t>}},
}};

}  // namespace intaglio::INTAGLIO_ISA
