// Requantisation of a result to its output's scale: the inputs `multiplier` and `shift` where a node has them, one per
// channel or one for all, else the constants that its scales give.
#pragma once

#include <string>

#include "plugins/integer_constants.h"
#include "plugins/ort/operator.h"

namespace intaglio::ort {

class Factors {
public:
    // Of inputs that are [channels] or [1] int32, or not there; throws Error for other shapes, and shifts out of 0..62.
    Factors(const Tensor& multiplier, const Tensor& shift, int64_t channels, Dyadic otherwise)
        : otherwise_(otherwise),
          multiplier_(values("multiplier", multiplier, channels, otherwise_.multiplier)),
          shift_(values("shift", shift, channels, otherwise_.shift)) {
        if (shift) check_shifts(shift);
    }
    Factors(const Factors&) = delete;
    Factors& operator=(const Factors&) = delete;

    // [channels] each; they may point into the inputs, or into this.
    const int32_t* multiplier() const { return multiplier_.data(); }
    const int32_t* shift() const { return shift_.data(); }

private:
    static PerChannelValues values(const char* name, const Tensor& tensor, int64_t channels, int32_t& otherwise) {
        if (!tensor) return PerChannelValues({&otherwise, DType::int32, Shape{1}}, channels);
        check_per_channel(name, tensor, channels);
        return PerChannelValues(tensor, channels);
    }

    Dyadic otherwise_;
    PerChannelValues multiplier_, shift_;
};

// The attribute of that name: the integer of 8 bits that stands for 0.
inline int zero_point(const Node& node, const char* name) {
    const int64_t value = node.integer(name);
    if (value < -128 || value > 127) throw Error(std::string(name) + ": " + std::to_string(value) + ", expected -128 to 127");
    return int(value);
}

// Throws Error unless every multiplier of a term of a sum is below 2^30 in magnitude, so that the sum stays in 64 bits.
inline void check_term_multiplier(const char* name, const Tensor& multiplier) {
    constexpr int32_t LIMIT = 1 << 30;
    const int32_t* values = multiplier.as<int32_t>();
    for (int64_t i = 0; i < multiplier.shape.elements(); ++i) {
        if (values[i] <= -LIMIT || values[i] >= LIMIT) {
            throw Error(std::string(name) + ": " + std::to_string(values[i]) + ", expected below 2^30");
        }
    }
}

}  // namespace intaglio::ort
