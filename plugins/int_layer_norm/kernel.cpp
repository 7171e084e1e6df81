// A row is read twice: for its sum and its range, which tell the largest deviation; and for the deviations, which have
// 16 bits from then on. Both the deviations and the output have a path for vectors of 32 bits, which takes what real
// networks have, and one for everything else, element by element as integer_math.h says it.
#include "plugins/int_layer_norm/kernel.h"

#include "plugins/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// --- from x to normalised deviations --------------------------------------------------------------------------------

struct RowSums {
    int32_t low, high;  // the smallest and largest x
    int32_t sum;        // modulo 2^32
};

RowSums sum_row(const int32_t* x, int64_t channels) {
    I32 low = set32(INT32_MAX), high = set32(INT32_MIN), total = set32(0);
    int64_t i = 0;
    for (; i + LANES <= channels; i += LANES) {
        const I32 v = load32(x + i);
        low = min(low, v);
        high = max(high, v);
        total = total + v;
    }
    RowSums row = {smallest(low), largest(high), sum(total)};
    for (; i < channels; ++i) {
        row.low = x[i] < row.low ? x[i] : row.low;
        row.high = x[i] > row.high ? x[i] : row.high;
        row.sum = int32_t(uint32_t(row.sum) + uint32_t(x[i]));
    }
    return row;
}

// Writes the shifted deviations; returns the sum of their squares. For channels·|x| <= 2^29, so that no deviation has
// more than 31 bits. (channels·x - sum) << left, plus the rounding term, is one product and one sum modulo 2^32.
int64_t shorten_deviations(const int32_t* x, int64_t channels, int32_t sum_of_x, int32_t shift, int16_t* deviations) {
    const int32_t left = shift < 0 ? -shift : 0, right = shift > 0 ? shift : 0;
    const uint32_t half = shift > 0 ? 1u << (shift - 1) : 0;
    const I32 multiplier = set32(int32_t(uint32_t(channels) << left));
    const I32 offset = set32(int32_t(half - (uint32_t(sum_of_x) << left))), counts = set32(right);
    const auto shortened = [&](I32 v) { return shift_right(v * multiplier + offset, counts); };
    const I16 lowest = set16(-32767);
    Sum64 squares = zero64();
    int64_t i = 0;
    for (; i + 2 * LANES <= channels; i += 2 * LANES) {
        const I16 v = max(narrow(shortened(load32(x + i)), shortened(load32(x + i + LANES))), lowest);
        store(deviations + i, v);
        squares = add_unsigned(squares, multiply_add_pairs(v, v));
    }
    int64_t rest = 0;
    for (; i < channels; ++i) {
        deviations[i] = int16_t(shifted_deviation(channels * x[i] - sum_of_x, shift));
        rest += deviations[i] * deviations[i];
    }
    return sum(squares) + rest;
}

// The same for any x.
int64_t shorten_any_deviations(const int32_t* x, int64_t channels, int64_t sum_of_x, int32_t shift, int16_t* deviations) {
    int64_t squares = 0;
    for (int64_t i = 0; i < channels; ++i) {
        deviations[i] = int16_t(shifted_deviation(channels * x[i] - sum_of_x, shift));
        squares += deviations[i] * deviations[i];
    }
    return squares;
}

RowScale scale_row(const int32_t* x, const LayerNormConstants& constants, int16_t* deviations) {
    const int64_t channels = constants.channels;
    const RowSums row = sum_row(x, channels);
    const int64_t low = row.low, high = row.high;
    const bool narrow = channels * (-low > high ? -low : high) <= 1 << 29;
    int64_t sum_of_x = row.sum;
    if (!narrow) {
        sum_of_x = 0;
        for (int64_t i = 0; i < channels; ++i) sum_of_x += x[i];
    }
    const int64_t above = channels * high - sum_of_x, below = sum_of_x - channels * low;
    const int64_t largest = above > below ? above : below;
    const int32_t shift = deviation_shift(largest);
    const int64_t squares = narrow ? shorten_deviations(x, channels, row.sum, shift, deviations)
                                   : shorten_any_deviations(x, channels, sum_of_x, shift, deviations);
    return row_scale(largest, squares, constants);
}

// --- from normalised deviations to the output -----------------------------------------------------------------------

// What LANES channels are computed with. Both factors are applied as those of a Requantizer (simd.h) are, only simpler:
// what they multiply has 16 bits, and so can always move left by up to 15.
struct Group {
    I32 weight, bias;                   // weight·weight_multiplier, and the bias at wide_scale
    I32 left, multiplier, half, shift;  // from wide_scale to y's
};

constexpr int32_t MOST_LEFT = 15;

int64_t table_bytes(int64_t channels) { return (channels + LANES - 1) / LANES * int64_t(sizeof(Group)); }

bool prepare(const LayerNormParameters& p, void* table) {
    const LayerNormConstants& constants = p.constants;
    const int64_t channels = constants.channels;
    if (33 - constants.weight_shift > MOST_LEFT) return false;
    for (int64_t i = 0; i < channels; ++i) {
        if (p.weight[i] < -(1 << 15) || p.weight[i] > 1 << 15) return false;
    }
    Group* group = static_cast<Group*>(table);
    for (int64_t c = 0; c < channels; c += LANES, ++group) {
        const int n = int(channels - c < LANES ? channels - c : LANES);
        int32_t bias[LANES] = {};
        for (int i = 0; i < n; ++i) bias[i] = layer_norm_bias(p.bias[c + i], constants);
        const Requantizer r = requantizer(load32(p.multiplier + c, n), load32(p.shift + c, n));
        if (largest(r.x_shift) > MOST_LEFT) return false;
        const I32 weight = load32(p.weight + c, n) * set32(constants.weight_multiplier);
        *group = {weight, load32(bias), r.x_shift, r.multiplier, r.half, r.shift};
    }
    return true;
}

// The normalised, weighted and biased 16-bit values of LANES channels, at wide_scale.
class VectorOutput {
public:
    VectorOutput(const RowScale& row, const LayerNormConstants& constants)
        : factor_(set32(row.factor)),
          half_shift_(set32(row.half_shift)),
          left_(set32(constants.weight_shift < 33 ? 33 - constants.weight_shift : 0)),
          right_(set32(constants.weight_shift < 33 ? 1 : constants.weight_shift - 32)),
          half_(shift_left(set32(1), right_ - set32(1))) {}

    I32 wide(I32 deviation, const Group& group) const {
        const I32 halved = shift_right(deviation * factor_, half_shift_);
        const I32 normal = min(max((halved + set32(1)) >> 1, set32(-32767)), set32(32767));
        const I32 product = multiply_high(shift_left(normal, left_), group.weight, odd_lanes(group.weight));
        return clip16(shift_right(product + half_, right_) + group.bias);
    }

    static I32 y(I32 wide, const Group& group) {
        const I32 product = multiply_high(shift_left(wide, group.left), group.multiplier, odd_lanes(group.multiplier));
        return shift_right(product + group.half, group.shift);
    }

private:
    I32 factor_, half_shift_, left_, right_, half_;
};

void write_row(const int16_t* deviations, const RowScale& row, const LayerNormConstants& constants, const Group* group,
               int8_t* y, int32_t* wide) {
    const VectorOutput output(row, constants);
    const int64_t channels = constants.channels;
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES, ++group) {
        const I32 v = output.wide(load32(deviations + c), *group);
        if (wide != nullptr) store(wide + c, v);
        store_saturated(y + c, output.y(v, *group));
    }
    if (const int n = int(channels - c); n > 0) {
        const I32 v = output.wide(load32(deviations + c, n), *group);
        if (wide != nullptr) store(wide + c, v, n);
        store_saturated(y + c, output.y(v, *group), n);
    }
}

// The same for any weights and factors.
void write_any_row(const int16_t* deviations, const RowScale& row, const LayerNormParameters& p, int8_t* y, int32_t* wide) {
    for (int64_t i = 0; i < p.constants.channels; ++i) {
        const int32_t normal = normalized(deviations[i], row), bias = layer_norm_bias(p.bias[i], p.constants);
        const int32_t v = layer_norm_wide(normal, p.weight[i], bias, p.constants);
        if (wide != nullptr) wide[i] = v;
        y[i] = int8_t(intaglio::clip8(requantize(v, p.multiplier[i], p.shift[i])));
    }
}

void layer_norm_row(const int32_t* x, const LayerNormParameters& parameters, const void* table, int16_t* scratch, int8_t* y,
                    int32_t* wide) {
    const RowScale row = scale_row(x, parameters.constants, scratch);
    if (table != nullptr) {
        write_row(scratch, row, parameters.constants, static_cast<const Group*>(table), y, wide);
    } else {
        write_any_row(scratch, row, parameters, y, wide);
    }
}

}  // namespace

const IntLayerNormKernel int_layer_norm_kernel = {table_bytes, prepare, layer_norm_row};

}  // namespace intaglio::INTAGLIO_ISA
