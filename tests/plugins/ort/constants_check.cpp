// Prints the integer constants that plugins/integer_constants.h derives, one line for each line of scales on stdin:
//     gelu scale out_scale | exp scale | softmax out_scale
//     layer_norm channels scale weight_scale bias_scale out_scale wide_scale epsilon
// or "refused". Scales are written as hexadecimal floats.
#include "plugins/integer_constants.h"

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

using namespace intaglio;

static float number(std::istream& line) {
    std::string text;
    line >> text;
    return std::strtof(text.c_str(), nullptr);
}

static void print(const std::string& kind, std::istream& line) {
    if (kind == "gelu") {
        const float scale = number(line);
        const GeluConstants c = gelu_constants(scale, number(line));
        std::printf("%d %d %d %d %d %d %d %d\n", c.multiplier, c.shift, c.saturation, c.normalize, c.square_shift, c.coefficient, c.out_multiplier,
                    c.out_shift);
    } else if (kind == "exp") {
        const ExpConstants c = exp_constants(number(line));
        std::printf("%u %d %d %u\n", c.limit, c.left, c.right, c.multiplier);
    } else if (kind == "softmax") {
        const Dyadic d = softmax_constants(number(line));
        std::printf("%d %d\n", d.multiplier, d.shift);
    } else {
        float values[7];
        for (float& value : values) value = number(line);
        const LayerNormConstants c = layer_norm_constants(int64_t(values[0]), values[1], values[2], values[3], values[4],
                                                          values[5], values[6]);
        std::printf("%d %d %u %d %d %d %d %d %d %d %d\n", c.channels, c.fraction, c.root, c.epsilon, c.epsilon_exponent,
                    c.weight_multiplier, c.weight_shift, c.bias_multiplier, c.bias_shift, c.out_multiplier, c.out_shift);
    }
}

int main() {
    for (std::string text; std::getline(std::cin, text);) {
        std::istringstream line(text);
        std::string kind;
        line >> kind;
        try {
            print(kind, line);
        } catch (const std::invalid_argument&) {
            std::puts("refused");
        }
    }
}
