// Scales and minimums of groups as the kernels keep them, in as few bytes as lose nothing: what is read of memory limits a
// product with few rows of x, and of 4-bit weights in groups of 32 a fifth would be scales of float32.
//
//     FLOATS_KEPT           [tiles][groups][TILE] float32
//     HALVES_KEPT           [tiles][groups][TILE] float16, where each is one
//     PRODUCTS_KEPT         [tiles][groups][TILE] int8, and [tiles][spans][TILE] float32 that 2^shift groups share, where
//                           their products are the numbers
//     HALF_PRODUCTS_KEPT    the same with float16 for the spans, where it has them: those of GGUF's K-quants
#pragma once

#include <stdint.h>

#include "plugins/cpu/simd_float.h"
#include "plugins/group_matmul/kernel.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int64_t FACTOR_ROWS = GroupMatMulKernel::TILE;
constexpr int32_t MOST_STEPS = 128;
constexpr int64_t SPAN = 256;  // numbers of a row that share a factor

static uint32_t bits_of(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}

constexpr uint32_t SMALLEST_NORMAL_HALF = 0x38800000;  // 2^-14, whose smaller neighbours are multiples of 2^-24

static bool is_half(float value) {
    const uint32_t magnitude = bits_of(value) & 0x7fffffff;
    if (magnitude >= SMALLEST_NORMAL_HALF) return (magnitude & 0x1fff) == 0 && magnitude < 0x47800000;
    const float steps = value * 0x1p24f;
    return steps == float(int32_t(steps));
}

static uint16_t half_of(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    const uint32_t rest = magnitude < SMALLEST_NORMAL_HALF ? uint32_t(__builtin_fabsf(value) * 0x1p24f)
                                                           : (magnitude - (uint32_t(127 - 15) << 23)) >> 13;
    return uint16_t(bits >> 16 & 0x8000) | uint16_t(rest);
}

// Finds a float32, or float16, of which all `count` numbers, `stride` apart, are -128 to 127 times; 0 where all are zero. The
// largest number says which ones are possible: its odd part is a multiple of theirs. Their sign says on which side of zero 128
// times is needed: GGUF's Q6_K has it in each span.
static bool common_factor(const float* numbers, int64_t stride, int64_t count, bool half, float* found) {
    float largest = 0;
    for (int64_t i = 0; i < count; ++i) {
        const float magnitude = __builtin_fabsf(numbers[i * stride]);
        if (!(magnitude <= 3.4028235e38f)) return false;
        largest = magnitude > largest ? magnitude : largest;
    }
    *found = 0;
    if (largest == 0) return true;
    const uint32_t bits = bits_of(largest);
    uint32_t odd = (bits & 0x7fffff) | (bits >> 23 == 0 ? 0 : 0x800000);
    odd >>= __builtin_ctz(odd);
    for (int32_t most = MOST_STEPS; most >= 1; --most) {
        if (odd % uint32_t(most >> __builtin_ctz(uint32_t(most))) != 0) continue;
        const float factor = largest / float(most);
        bool fits = factor >= 1.1754944e-38f && (!half || is_half(factor)), up = false, down = false;
        for (int64_t i = 0; i < count && fits; ++i) {
            const float number = numbers[i * stride], steps = __builtin_rintf(number / factor);
            fits = steps * factor == number;
            up |= steps == float(MOST_STEPS);
            down |= steps == -float(MOST_STEPS);
        }
        if (!fits || (up && down)) continue;
        *found = up ? -factor : factor;
        return true;
    }
    return false;
}

// rows·groups numbers, those of a row `group_stride` apart and rows `row_stride`.
static FactorForm factor_form(const float* numbers, int64_t row_stride, int64_t group_stride, int64_t rows, int64_t groups,
                              int64_t group_size) {
    const int64_t span = SPAN / group_size;
    bool halves = true, products = span > 1 && span * group_size == SPAN && (span & (span - 1)) == 0 && groups % span == 0;
    bool half_products = products;
    for (int64_t row = 0; row < rows && (halves || products); ++row) {
        const float* const first = numbers + row * row_stride;
        for (int64_t group = 0; group < groups && halves; ++group) halves = is_half(first[group * group_stride]);
        for (int64_t group = 0; group < groups && products; group += span) {
            const float* const of_span = first + group * group_stride;
            float factor;
            half_products = half_products && common_factor(of_span, group_stride, span, true, &factor);
            products = half_products || common_factor(of_span, group_stride, span, false, &factor);
        }
    }
    if (products) return {half_products ? HALF_PRODUCTS_KEPT : PRODUCTS_KEPT, __builtin_ctz(unsigned(span))};
    return {halves ? HALVES_KEPT : FLOATS_KEPT, 0};
}

constexpr bool are_products(FactorForm form) { return form.kept == PRODUCTS_KEPT || form.kept == HALF_PRODUCTS_KEPT; }
constexpr int64_t factor_bytes(FactorForm form) { return form.kept == FLOATS_KEPT ? 4 : form.kept == HALVES_KEPT ? 2 : 1; }
constexpr int64_t span_bytes(FactorForm form) { return form.kept == HALF_PRODUCTS_KEPT ? 2 : 4; }

// Where they lie, from `begin` on.
struct FactorLayout {
    FactorLayout(FactorForm form, int64_t tiles, int64_t groups, int64_t begin)
        : codes(begin),
          spans(codes + tiles * groups * FACTOR_ROWS * factor_bytes(form)),
          spans_of_tile(are_products(form) ? groups >> form.shift : 0),
          end(spans + tiles * spans_of_tile * FACTOR_ROWS * span_bytes(form)) {}

    int64_t codes, spans, spans_of_tile, end;
};

// Writes the factors of row `row` of a tile, `get(group)` each.
template <typename Get>
static void pack_factors(FactorForm form, const FactorLayout& layout, uint8_t* base, int64_t tile, int64_t groups, int64_t row,
                         const Get& get) {
    uint8_t* const codes = base + layout.codes;
    uint8_t* const spans = base + layout.spans + (tile * layout.spans_of_tile * FACTOR_ROWS + row) * span_bytes(form);
    const bool half = form.kept == HALF_PRODUCTS_KEPT;
    float factor = 0;
    for (int64_t group = 0; group < groups; ++group) {
        const int64_t at = (tile * groups + group) * FACTOR_ROWS + row;
        const float value = get(group);
        if (form.kept == FLOATS_KEPT) {
            reinterpret_cast<float*>(codes)[at] = value;
        } else if (form.kept == HALVES_KEPT) {
            reinterpret_cast<uint16_t*>(codes)[at] = half_of(value);
        } else {
            const int64_t span = int64_t(1) << form.shift;
            if (group % span == 0) {
                float numbers[SPAN];
                for (int64_t i = 0; i < span; ++i) numbers[i] = get(group + i);
                common_factor(numbers, 1, span, half, &factor);
                uint8_t* const place = spans + (group >> form.shift) * FACTOR_ROWS * span_bytes(form);
                if (half) {
                    *reinterpret_cast<uint16_t*>(place) = half_of(factor);
                } else {
                    *reinterpret_cast<float*>(place) = factor;
                }
            }
            reinterpret_cast<int8_t*>(codes)[at] = factor == 0 ? int8_t(0) : int8_t(__builtin_rintf(value / factor));
        }
    }
}

// Factors of a tile, from a group and a row of it on.
struct Factors {
    const uint8_t *codes, *spans;
    int64_t group;  // the first one's place in its tile
    FactorForm form;

    void advance(int64_t groups, int64_t rows) {
        codes += (groups * FACTOR_ROWS + rows) * factor_bytes(form);
        spans += rows * span_bytes(form);
        group += groups;
    }
};

static Factors factors_of_tile(FactorForm form, const FactorLayout& layout, const uint8_t* base, int64_t tile, int64_t groups) {
    return {base + layout.codes + tile * groups * FACTOR_ROWS * factor_bytes(form),
            base + layout.spans + tile * layout.spans_of_tile * FACTOR_ROWS * span_bytes(form), 0, form};
}

// Of group `index` of the stretch, those of FLOATS rows from `row` on.
INTAGLIO_FLOAT F32 load_factors(const Factors& f, int64_t index, int64_t row) {
    const int64_t at = index * FACTOR_ROWS + row;
    if (f.form.kept == FLOATS_KEPT) return load_float(reinterpret_cast<const float*>(f.codes) + at);
    if (f.form.kept == HALVES_KEPT) return load_float16(reinterpret_cast<const uint16_t*>(f.codes) + at);
    const uint8_t* const spans = f.spans + (((f.group + index) >> f.form.shift) * FACTOR_ROWS + row) * span_bytes(f.form);
    const F32 of_span = f.form.kept == HALF_PRODUCTS_KEPT ? load_float16(reinterpret_cast<const uint16_t*>(spans))
                                                          : load_float(reinterpret_cast<const float*>(spans));
    return load_codes(reinterpret_cast<const int8_t*>(f.codes) + at) * of_span;
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
