// A row is read twice: for its sum and its range, which tell the largest deviation; and for the deviations, which have
// 16 bits from then on. A residual is added in the first reading; the second one reads what that has made, from the
// nearest cache. Both the deviations and the output have a path for vectors of 32 bits, which takes what real networks
// have, and one for everything else, element by element as in integer_math.h.
#include "plugins/int_layer_norm/kernel.h"

#include "plugins/cpu/simd.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// --- from x to normalised deviations --------------------------------------------------------------------------------

struct RowSums {
    int32_t low, high;  // the smallest and largest x
    int32_t sum;        // modulo 2^32
};

// An unchanged row.
class Row {
public:
    explicit Row(const int32_t* x) : x_(x) {}
    I32 vector(int64_t i) const { return load32(x_ + i); }
    int32_t element(int64_t i) const { return x_[i]; }

private:
    const int32_t* x_;
};

// A row with a residual of int8 or int32; what is read of it is written to `sums`.
template <typename T>
class RowWithResidual {
public:
    RowWithResidual(const int32_t* x, const void* residual, const ResidualFactors& factors, int32_t* sums)
        : x_(x),
          residual_(static_cast<const T*>(residual)),
          factors_(factors),
          vectors_(scaled_sum_of(set32(factors.x_multiplier), set32(factors.multiplier), set32(factors.shift))),
          sums_(sums) {}

    I32 vector(int64_t i) const {
        const I32 sum = scaled_sum16(load32(x_ + i), load32(residual_ + i), vectors_);
        store(sums_ + i, sum);
        return sum;
    }
    int32_t element(int64_t i) const {
        const int64_t sum = scaled_sum(x_[i], factors_.x_multiplier, residual_[i], factors_.multiplier, factors_.shift);
        return sums_[i] = intaglio::clip16(sum);
    }

private:
    const int32_t* x_;
    const T* residual_;
    const ResidualFactors& factors_;
    ScaledSum vectors_;
    int32_t* sums_;
};

template <typename Source>
RowSums sum_row(const Source& source, int64_t channels) {
    I32 low = set32(INT32_MAX), high = set32(INT32_MIN), total = set32(0);
    int64_t i = 0;
    for (; i + LANES <= channels; i += LANES) {
        const I32 v = source.vector(i);
        low = min(low, v);
        high = max(high, v);
        total = total + v;
    }
    RowSums row = {smallest(low), largest(high), sum(total)};
    for (; i < channels; ++i) {
        const int32_t v = source.element(i);
        row.low = v < row.low ? v : row.low;
        row.high = v > row.high ? v : row.high;
        row.sum = int32_t(uint32_t(row.sum) + uint32_t(v));
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

RowScale scale_row(const int32_t* x, const RowSums& row, const LayerNormConstants& constants, int16_t* deviations) {
    const int64_t channels = constants.channels, low = row.low, high = row.high;
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

// What LANES channels are computed with, by one of two ways.
//
// Short: all products stay within 32 bits. For weights of up to 16 bits at a scale that is a power of two times
// wide_scale, so that weight_multiplier is one too, and for ShortFactors.
struct ShortGroup {
    I32 weight, bias;  // the bias at wide_scale
    ShortFactors out;  // from wide_scale to y's

    // The shift is the weights'.
    struct Output {
        I32 shift, half;

        explicit Output(int32_t weight_shift) : shift(set32(weight_shift)), half(set32((1 << weight_shift) >> 1)) {}
        I32 weighted(I32 normal, const ShortGroup& group) const {
            return shift_right(normal * group.weight + half, shift);
        }
        I32 y(I32 wide, const ShortGroup& group) const { return requantize(wide, group.out); }
    };
};

// Long: both factors are applied as those of a Requantizer (simd.h) are, only simpler: what they multiply has 16 bits,
// and so can always move left by up to 15.
struct LongGroup {
    I32 weight, bias;  // weight·weight_multiplier, and the bias at wide_scale
    I32 left, multiplier, half, shift;

    struct Output {
        I32 left, right, half;

        explicit Output(int32_t weight_shift)
            : left(set32(weight_shift < 33 ? 33 - weight_shift : 0)),
              right(set32(weight_shift < 33 ? 1 : weight_shift - 32)),
              half(shift_left(set32(1), right - set32(1))) {}
        I32 weighted(I32 normal, const LongGroup& group) const {
            const I32 product = multiply_high(shift_left(normal, left), group.weight, odd_lanes(group.weight));
            return shift_right(product + half, right);
        }
        I32 y(I32 wide, const LongGroup& group) const {
            const I32 moved = shift_left(wide, group.left);
            return shift_right(multiply_high(moved, group.multiplier, odd_lanes(group.multiplier)) + group.half, group.shift);
        }
    };
};

// The head of a table; the groups follow.
struct alignas(64) TableHead {
    bool is_short;
    int32_t weight_shift;
};

template <typename Group>
Group* groups_of(TableHead* head) { return reinterpret_cast<Group*>(head + 1); }
template <typename Group>
const Group* groups_of(const TableHead* head) { return reinterpret_cast<const Group*>(head + 1); }

constexpr int32_t MOST_LEFT = 15;

int64_t table_bytes(int64_t channels) {
    return int64_t(sizeof(TableHead)) + (channels + LANES - 1) / LANES * int64_t(sizeof(LongGroup));
}

// Calls fill(group, first channel, number of channels, biases) for each group; false where one of them is.
template <typename Group, typename Fill>
bool fill_groups(const LayerNormParameters& p, Group* group, const Fill& fill) {
    const int64_t channels = p.constants.channels;
    for (int64_t c = 0; c < channels; c += LANES, ++group) {
        const int n = int(channels - c < LANES ? channels - c : LANES);
        int32_t bias[LANES] = {};
        for (int i = 0; i < n; ++i) bias[i] = layer_norm_bias(p.bias[c + i], p.constants);
        if (!fill(*group, c, n, load32(bias))) return false;
    }
    return true;
}

bool prepare(const LayerNormParameters& p, void* table) {
    const LayerNormConstants& constants = p.constants;
    for (int64_t i = 0; i < constants.channels; ++i) {
        if (p.weight[i] < -(1 << 15) || p.weight[i] > 1 << 15) return false;
    }
    TableHead* const head = static_cast<TableHead*>(table);
    const int32_t exponent = bit_length(uint64_t(constants.weight_multiplier)) - 1;
    const int32_t shift = constants.weight_shift - exponent;
    if (exponent >= 0 && constants.weight_multiplier == 1 << exponent && shift >= 0 && shift <= 30 &&
        is_short(p.multiplier, p.shift, constants.channels)) {
        *head = {true, shift};
        return fill_groups(p, groups_of<ShortGroup>(head), [&](ShortGroup& group, int64_t c, int n, I32 bias) {
            const ShortFactors out = short_factors(load32(p.multiplier + c, n), load32(p.shift + c, n));
            group = {load32(p.weight + c, n), bias, out};
            return true;
        });
    }
    *head = {false, constants.weight_shift};
    if (33 - constants.weight_shift > MOST_LEFT) return false;
    return fill_groups(p, groups_of<LongGroup>(head), [&](LongGroup& group, int64_t c, int n, I32 bias) {
        const Requantizer r = requantizer(load32(p.multiplier + c, n), load32(p.shift + c, n));
        const I32 weight = load32(p.weight + c, n) * set32(constants.weight_multiplier);
        group = {weight, bias, r.x_shift, r.multiplier, r.half, r.shift};
        return largest(r.x_shift) <= MOST_LEFT;
    });
}

template <typename Group>
void write_row(const int16_t* deviations, const RowScale& row, int64_t channels, const TableHead* table, int8_t* y,
               int32_t* wide) {
    const typename Group::Output output(table->weight_shift);
    const I32 factor = set32(row.factor), half_shift = set32(row.half_shift);
    // The normalised, weighted and biased 16-bit values of LANES channels, at wide_scale.
    const auto normalize = [&](I32 deviation, const Group& group) {
        const I32 halved = shift_right(deviation * factor, half_shift);
        const I32 normal = min(max((halved + set32(1)) >> 1, set32(-32767)), set32(32767));
        return clip16(output.weighted(normal, group) + group.bias);
    };
    const Group* group = groups_of<Group>(table);
    int64_t c = 0;
    for (; c + LANES <= channels; c += LANES, ++group) {
        const I32 v = normalize(load32(deviations + c), *group);
        if (wide != nullptr) store(wide + c, v);
        store_saturated(y + c, output.y(v, *group));
    }
    if (const int n = int(channels - c); n > 0) {
        const I32 v = normalize(load32(deviations + c, n), *group);
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

void layer_norm_row(const int32_t* x, const void* residual, const LayerNormParameters& parameters, const void* table,
                    const LayerNormScratch& scratch, int8_t* y, int32_t* wide) {
    const LayerNormConstants& constants = parameters.constants;
    RowSums sums;
    if (residual == nullptr) {
        sums = sum_row(Row(x), constants.channels);
    } else if (parameters.residual.is_int8) {
        sums = sum_row(RowWithResidual<int8_t>(x, residual, parameters.residual, scratch.sums), constants.channels);
    } else {
        sums = sum_row(RowWithResidual<int32_t>(x, residual, parameters.residual, scratch.sums), constants.channels);
    }
    const RowScale row = scale_row(residual == nullptr ? x : scratch.sums, sums, constants, scratch.deviations);
    const TableHead* const head = static_cast<const TableHead*>(table);
    if (head == nullptr) {
        write_any_row(scratch.deviations, row, parameters, y, wide);
    } else if (head->is_short) {
        write_row<ShortGroup>(scratch.deviations, row, constants.channels, head, y, wide);
    } else {
        write_row<LongGroup>(scratch.deviations, row, constants.channels, head, y, wide);
    }
}

}  // namespace

const IntLayerNormKernel int_layer_norm_kernel = {table_bytes, prepare, layer_norm_row};

}  // namespace intaglio::INTAGLIO_ISA
