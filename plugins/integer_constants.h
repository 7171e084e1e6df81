// From real-valued scales to the integer constants of integer_math.h: the C++ twin of the derivations in
// integer_math.py, equal to them bit for bit because both compute in IEEE doubles, in the same order.
//
// Used once, when a kernel is made; throws std::invalid_argument for arguments out of range.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>

#include "integer_math.h"

namespace intaglio {

struct Dyadic {
    int32_t multiplier, shift;
};

// real > 0 as multiplier / 2^shift with a multiplier of `bits`.
static inline Dyadic dyadic(double real, int bits = 31) {
    if (!(real > 0) || !std::isfinite(real)) {
        throw std::invalid_argument("scale factor " + std::to_string(real) + ": expected a positive finite number");
    }
    int exponent;
    const double fraction = std::frexp(real, &exponent);
    double multiplier = std::floor(std::ldexp(fraction, bits) + 0.5);
    int shift = bits - exponent;
    if (multiplier == std::ldexp(1.0, bits)) {
        multiplier /= 2;
        --shift;
    }
    if (shift > 62) {
        multiplier = std::floor(std::ldexp(real, 62) + 0.5);
        shift = 62;
    }
    if (shift < 0) throw std::invalid_argument("scale factor " + std::to_string(real) + ": too large");
    return {int32_t(multiplier), shift};
}

static inline float gelu_inner_scale(float out_scale) {
    return float(double(out_scale) / 256);
}

static inline GeluConstants gelu_constants(float scale, float out_scale) {
    if (!(out_scale > 0 && out_scale <= 512)) throw std::invalid_argument("out_scale: expected in (0, 512]");
    if (out_scale < 0.0293f) {
        throw std::invalid_argument("out_scale: expected 0.0293 or more: made before i-GELU took a fourth power; compress again");
    }
    const double inner = gelu_inner_scale(out_scale);
    GeluConstants constants;
    constants.saturation = int32_t(std::floor(3.70 / inner + 0.5));
    constants.normalize = 15 - bit_length(uint64_t(constants.saturation));
    const int32_t distance = constants.saturation << constants.normalize, square = multiply_q15(distance, distance);
    constants.square_shift = 15 - bit_length(uint64_t(square));
    const double largest = std::ldexp(double(square), constants.square_shift);
    constants.coefficient = int32_t(std::floor(std::ldexp(0.5483, 43) / (largest * largest) + 0.5));
    const Dyadic in = dyadic(double(scale) / inner), out = dyadic(inner / double(out_scale));
    constants.multiplier = in.multiplier;
    constants.shift = in.shift;
    constants.out_multiplier = out.multiplier;
    constants.out_shift = out.shift;
    return constants;
}

static inline ExpConstants exp_constants(float scale) {
    if (!(scale >= std::ldexp(1.0, -27) && scale <= std::ldexp(1.0, 10))) {
        throw std::invalid_argument("softmax scale: expected in [2^-27, 2^10]");
    }
    const double octaves = double(scale) / 0.6931471805599453 * 2048;
    const double limit = std::ceil(17 * 2048 / octaves);
    int left = 16 - bit_length(uint64_t(limit));
    double multiplier = std::floor(std::ldexp(octaves, 16 - left) + 0.5);
    while (multiplier > 65535) {
        ++left;
        multiplier = std::floor(std::ldexp(octaves, 16 - left) + 0.5);
    }
    return {uint32_t(limit), left > 0 ? left : 0, left < 0 ? -left : 0, uint32_t(multiplier)};
}

static inline Dyadic softmax_constants(float out_scale) {
    if (!(out_scale >= std::ldexp(1.0, -24) && out_scale <= 1)) {
        throw std::invalid_argument("out_scale: expected in [2^-24, 1]");
    }
    return dyadic(1.0 / double(out_scale));
}

// A wide_scale of 0 stands for out_scale / 256.
static inline LayerNormConstants layer_norm_constants(int64_t channels, float scale, float weight_scale,
                                                      float bias_scale, float out_scale, float wide_scale,
                                                      float epsilon) {
    if (channels < 1 || channels > 65536) throw std::invalid_argument("channels: expected 1 to 65536");
    const double wide = wide_scale != 0 ? double(wide_scale) : double(out_scale) / 256;
    for (const double positive : {double(scale), double(out_scale), wide}) {
        if (!(positive > 0 && std::isfinite(positive))) throw std::invalid_argument("scales: expected positive numbers");
    }
    if (!(epsilon >= 0 && std::isfinite(epsilon))) throw std::invalid_argument("epsilon: expected 0 or a positive number");
    const int half_bits = (bit_length(uint64_t(channels - 1)) + 1) / 2;
    LayerNormConstants constants;
    constants.channels = int32_t(channels);
    constants.fraction = 15 - half_bits;
    constants.root = uint32_t(std::floor(std::sqrt(double(channels)) * std::ldexp(1.0, 31 - half_bits) + 0.5));
    const double cubed = double(channels) * double(channels) * double(channels);  // exact below 2^53
    int exponent;
    const double mantissa = std::frexp(double(epsilon) * cubed / (double(scale) * double(scale)), &exponent);
    constants.epsilon = int32_t(std::floor(std::ldexp(mantissa, 31)));
    constants.epsilon_exponent = exponent - 31;
    const Dyadic weight = dyadic(double(weight_scale) * std::ldexp(1.0, -constants.fraction) / wide, 16);
    const Dyadic bias = dyadic(double(bias_scale) / wide), out = dyadic(wide / double(out_scale));
    constants.weight_multiplier = weight.multiplier;
    constants.weight_shift = weight.shift;
    constants.bias_multiplier = bias.multiplier;
    constants.bias_shift = bias.shift;
    constants.out_multiplier = out.multiplier;
    constants.out_shift = out.shift;
    return constants;
}

}  // namespace intaglio
