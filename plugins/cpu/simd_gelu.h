// i-GELU of 16-bit values at its inner scale, in vectors; integer_math.h's `gelu` lane by lane.
#pragma once

#include "plugins/cpu/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

struct GeluVectors {
    I16 saturation, coefficient;
    int normalize, square_shift;
};

INTAGLIO_SIMD GeluVectors gelu_vectors(const GeluConstants& constants) {
    return {set16(int16_t(constants.saturation)), set16(int16_t(constants.coefficient)), constants.normalize, constants.square_shift};
}

// |-32768| stays -32768 in 16 bits, which the unsigned subtraction takes for 32768: the distance is 0, as it should be.
INTAGLIO_SIMD I16 gelu(I16 v, const GeluVectors& constants) {
    const I16 distance = subtract_saturated_unsigned(constants.saturation, abs(v)) << constants.normalize;
    const I16 square = multiply_q15(distance, distance) << constants.square_shift;
    const I16 h = multiply_q15(multiply_q15(square, square), constants.coefficient);
    const I16 part = multiply_q15(v, h << 2);
    return select(set16(0) > v, part, v - part);
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
