#include "plugins/int_softmax/kernel.h"

#include "plugins/cpu/simd_exp.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// round(p·factor / 2^(31 + shift)) in vectors. With factor = whole·2^31 + part,
//
//     floor(p·factor / 2^31) = p·whole + floor(2·p·part / 2^32)
//
// which is at most the multiplier and so below 2^31, as p is at most the sum that factor was divided by. The rounding
// term 2^(30 + shift) is a multiple of 2^31, so that it can be added after this first shift.
struct Division {
    I32 whole, part, part_odd, half;
    int shift;

    Division(int64_t factor, int32_t shift)
        : whole(set32(int32_t(factor >> 31))),
          part(set32(int32_t(factor & INT32_MAX))),
          part_odd(odd_lanes(part)),
          half(set32(1 << (shift - 1))),
          shift(shift) {}

    I32 operator()(I32 p) const {
        const I32 quotient = p * whole + multiply_high(p + p, part, part_odd);
        return shift_right_logical(quotient + half, shift);
    }
};

void softmax_row(const int32_t* x, const uint8_t* mask, int64_t length, const SoftmaxConstants& constants, int16_t* p,
                 int8_t* y) {
    const int32_t total = exp_row(x, mask, length, row_largest(x, mask, length), VectorExp(constants.exp), p);
    const Division divide(softmax_factor(constants.multiplier, total), constants.shift);
    int64_t i = 0;
    for (; i + 2 * LANES <= length; i += 2 * LANES) {
        store_saturated(y + i, narrow(divide(load32(p + i)), divide(load32(p + i + LANES))));
    }
    if (i < length) {
        store_saturated(y + i, narrow(divide(load32(p + i)), divide(load32(p + i + LANES))), int(length - i));
    }
}

}  // namespace

const IntSoftmaxKernel int_softmax_kernel = {softmax_row};

}  // namespace intaglio::INTAGLIO_ISA
