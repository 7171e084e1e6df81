// Levels as the kernels keep them:
//
//     [2^bits] float32            the levels; or 16 bytes, whole numbers of steps, with the step in the scales, as
//                                 BYTE_OFFSET says
//     [32], [32], [16] float32    of levels of 8 bits that lie on lines, slopes and starts; 0 to 7, twice
#pragma once

#include <stddef.h>

#include "plugins/cpu/micro_kernel_choice.h"
#include "plugins/group_matmul/kernel.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int SIGN = MIDDLE - BYTE_OFFSET;  // of a byte, which is turned over where bytes are signed

// What is taken off numbers that fill a byte, and so off their zero points.
static int taken_off(const GroupFormat& f) { return f.planes > 0 && (f.has_levels || f.bits == 8) ? SIGN : 0; }

constexpr int64_t LINE_BYTES = 80 * sizeof(float);

static int64_t level_bytes(const GroupFormat& f) {
    if (!f.has_levels) return 0;
    return (int64_t(sizeof(float)) << f.bits) + (f.has_lines ? LINE_BYTES : 0);
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

static float slope_of(const float* eight) { return eight[1] - eight[0]; }

static bool lines(const uint8_t* numbers, int64_t bytes, const float* levels) {
#if defined(__AVX512F__)
    bool lies[256];
    for (int i = 0; i < 256; ++i) {
        const float* const eight = levels + i / 8 * 8;
        lies[i] = double(slope_of(eight)) * (i % 8) + double(eight[0]) == double(levels[i]);
    }
    bool all = true;
    for (int64_t i = 0; i < bytes; ++i) all &= lies[numbers[i]];
    return all;
#else
    (void)numbers, (void)bytes, (void)levels;
    return false;
#endif
}

// Writes the levels as the format has them, and returns what all scales are multiplied by.
static double pack_levels(const GroupFormat& format, const float* levels, uint8_t* target) {
    if (format.planes == 0) {
        __builtin_memcpy(target, levels, sizeof(float) << format.bits);
        float* const slopes = reinterpret_cast<float*>(target) + 256;
        for (int i = 0; i < (format.has_lines ? 32 : 0); ++i) {
            slopes[i] = slope_of(levels + 8 * i);
            slopes[32 + i] = levels[8 * i];
            slopes[64 + i % 16] = float(i % 8);
        }
        return 1;
    }
    const double step = step_of(levels);
    for (int i = 0; i < 16; ++i) target[i] = uint8_t(int(__builtin_rint(levels[i] / step)) + BYTE_OFFSET);
    return step;
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
