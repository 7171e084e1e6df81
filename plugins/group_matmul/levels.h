// Levels as the kernels keep them:
//
//     [2^bits] float32            the levels; or 16 bytes, whole numbers of steps, with the step in the scales, as
//                                 BYTE_OFFSET says
//     [32], [32], [16] float32    of levels of 8 bits that lie on lines, slopes and starts; 0 to 7, twice
//     FloatForm                   or, with AVX2, of levels that have a float32's upper bits, fewer of them
#pragma once

#include <stddef.h>

#include "plugins/cpu/micro_kernel_choice.h"
#include "plugins/group_matmul/kernel.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int SIGN = MIDDLE - BYTE_OFFSET;  // of a byte, which is turned over where bytes are signed

// What is taken off numbers that fill a byte, and so off their zero points.
static int taken_off(const GroupFormat& f) { return f.planes > 0 && (f.has_levels || f.bits == 8) ? SIGN : 0; }

constexpr int64_t COMPUTED_BYTES = 80 * sizeof(float);

static int64_t level_bytes(const GroupFormat& f) {
    if (!f.has_levels) return 0;
    return (int64_t(sizeof(float)) << f.bits) + (f.computed ? COMPUTED_BYTES : 0);
}

// The number of which all 16 levels are -127 to 127 times, but for float32's rounding; 0 where there is none.
static double step_of(const float* levels) {
    double largest = 0;
    for (int i = 0; i < 16; ++i) largest = __builtin_fabs(levels[i]) > largest ? __builtin_fabs(levels[i]) : largest;
    for (int most = 1; most <= 127; ++most) {
        const double step = largest / most;
        bool fits = step > 0;
        for (int i = 0; i < 16 && fits; ++i) {
            const double level = levels[i];
            fits = __builtin_fabs(level - step * __builtin_rint(level / step)) <= 1.2e-7 * __builtin_fabs(level);
        }
        if (fits) return step;
    }
    return 0;
}

[[maybe_unused]] static float slope_of(const float* eight) { return eight[1] - eight[0]; }

#if INTAGLIO_WORDS
// FP8 of 4 and of 5 bits of exponent: its bits among those of a float32, which lacks a power of two then.
constexpr FloatForm FLOAT_FORMS[] = {{4, int32_t(0x87f00000), 0}, {3, int32_t(0x8fe00000), 0}};
constexpr int ONES[] = {0x38, 0x3c};  // the codes of 1, which tell the factor

static float bits_of_code(const FloatForm& form, int code) {
    const int32_t bits = int32_t(uint32_t(code) << 24) >> form.shift & form.mask;
    float number;
    __builtin_memcpy(&number, &bits, sizeof number);
    return number;
}

static FloatForm float_form(int index, const float* levels) {
    FloatForm form = FLOAT_FORMS[index];
    form.factor = levels[ONES[index]] / bits_of_code(form, ONES[index]);
    return form;
}

// Whether the form gives the levels of all numbers that are used.
static bool gives(const FloatForm& form, const bool (&used)[256], const float* levels) {
    bool all = true;
    for (int i = 0; i < 256; ++i) all &= !used[i] || bits_of_code(form, i) * form.factor == levels[i];
    return all;
}
#endif

static int32_t computed_levels(const uint8_t* numbers, int64_t bytes, const float* levels) {
    bool used[256] = {};
    for (int64_t i = 0; i < bytes; ++i) used[numbers[i]] = true;
#if defined(__AVX512F__)
    bool all = true;
    for (int i = 0; i < 256; ++i) {
        const float* const eight = levels + i / 8 * 8;
        all &= !used[i] || double(slope_of(eight)) * (i % 8) + double(eight[0]) == double(levels[i]);
    }
    return all;
#elif INTAGLIO_WORDS
    const IeeeDenormals denormals;
    return gives(float_form(0, levels), used, levels) ? 1 : gives(float_form(1, levels), used, levels) ? 2 : 0;
#else
    (void)used, (void)levels;
    return 0;
#endif
}

// Writes the levels as the format has them, and returns what all scales are multiplied by.
static double pack_levels(const GroupFormat& format, const float* levels, uint8_t* target) {
    if (format.planes == 0) {
        __builtin_memcpy(target, levels, sizeof(float) << format.bits);
        if (format.computed == 0) return 1;
        float* const behind = reinterpret_cast<float*>(target) + 256;
#if INTAGLIO_WORDS
        const IeeeDenormals denormals;
        const FloatForm form = float_form(format.computed - 1, levels);
        __builtin_memcpy(behind, &form, sizeof form);
#else
        for (int i = 0; i < 32; ++i) {
            behind[i] = slope_of(levels + 8 * i);
            behind[32 + i] = levels[8 * i];
            behind[64 + i % 16] = float(i % 8);
        }
#endif
        return 1;
    }
    const double step = step_of(levels);
    for (int i = 0; i < 16; ++i) target[i] = uint8_t(int(__builtin_rint(levels[i] / step)) + BYTE_OFFSET);
    return step;
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
