// Tensors of float32 or float16 as float32, which the kernels of floating point compute in.
#pragma once

#include <cstring>

#include "plugins/ort/operator.h"

namespace intaglio::ort {

inline float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
    uint32_t bits = (rest << 13) + (uint32_t(127 - 15) << 23);
    if (rest >= 0x7c00) bits += uint32_t(255 - 31 - (127 - 15)) << 23;  // infinity and NaN
    float value;
    if (rest < 0x0400) {  // a multiple of 2^-24
        value = float(rest) * 5.9604644775390625e-8f;
        std::memcpy(&bits, &value, sizeof bits);
    }
    bits |= sign;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// To the nearest, ties to even.
inline uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds to 65536 or beyond
    if (magnitude < 0x38800000) {                                 // below 2^-14: a multiple of 2^-24
        float small;
        std::memcpy(&small, &magnitude, sizeof small);
        small += 0.5f;  // whose last bit is 2^-24, so the sum is rounded as wanted
        std::memcpy(&bits, &small, sizeof bits);
        return uint16_t(sign | (bits - 0x3f000000));
    }
    const uint32_t rebased = magnitude - (uint32_t(127 - 15) << 23);
    return uint16_t(sign | ((rebased + 0xfff + ((rebased >> 13) & 1)) >> 13));
}

// The elements of a tensor as float32: where they lie, or converted into memory of its own.
class RealInput {
public:
    explicit RealInput(const Tensor& tensor)
        : converted_(tensor.dtype == DType::float16 ? size_t(tensor.shape.elements()) * sizeof(float) : 0) {
        if (tensor.dtype != DType::float16) {
            data_ = tensor.as<float>();
            return;
        }
        const auto* const halves = static_cast<const uint16_t*>(tensor.data);
        float* const values = converted_.as<float>();
        for (int64_t i = 0; i < tensor.shape.elements(); ++i) values[i] = half_to_float(halves[i]);
        data_ = values;
    }
    const float* data() const { return data_; }

private:
    Scratch converted_;
    const float* data_;
};

// The output `y` of a node, which has the dtype of its input `x`.
inline void check_like(const Tensor& y, const Tensor& x) {
    if (y.dtype != x.dtype) throw Error(std::string("y: ") + dtype_name(y.dtype) + ", expected " + dtype_name(x.dtype) + " as x");
}

// An output of float32 or float16 to be written as float32; `finish` brings it to where it belongs.
class RealOutput {
public:
    explicit RealOutput(const Tensor& tensor)
        : tensor_(tensor),
          converted_(tensor.dtype == DType::float16 ? size_t(tensor.shape.elements()) * sizeof(float) : 0) {}
    float* data() const { return is_half() ? converted_.as<float>() : tensor_.as_mutable<float>(); }
    void finish() const {
        if (!is_half()) return;
        auto* const halves = static_cast<uint16_t*>(tensor_.data);
        const float* const values = converted_.as<float>();
        for (int64_t i = 0; i < tensor_.shape.elements(); ++i) halves[i] = float_to_half(values[i]);
    }

private:
    bool is_half() const { return tensor_.dtype == DType::float16; }
    Tensor tensor_;
    Scratch converted_;
};

}  // namespace intaglio::ort
