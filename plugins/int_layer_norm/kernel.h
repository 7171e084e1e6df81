// i-LayerNorm of one row of int32, or of its sum with a residual, as 16-bit values and as int8.
#pragma once

#include <cstdint>

#include "plugins/integer_math.h"
#include "plugins/cpu/isa.h"

namespace intaglio {

// What x and a residual are multiplied with before they are added, and the sum's shift.
struct ResidualFactors {
    int32_t x_multiplier, multiplier;  // in ±(2^30 - 1)
    int32_t shift;                     // 0..62
    bool is_int8;                      // else the residual is int32
};

struct LayerNormParameters {
    LayerNormConstants constants;
    const int32_t* weight;      // [channels]
    const int32_t* bias;        // [channels]
    const int32_t* multiplier;  // [channels] from wide_scale to y's
    const int32_t* shift;       // [channels], 0..62
    ResidualFactors residual;   // where rows have one
};

// Memory for one row.
struct LayerNormScratch {
    int16_t* deviations;  // [channels rounded up to a multiple of 64]
    int32_t* sums;        // [channels], where rows have a residual
};

struct IntLayerNormKernel {
    // Bytes of a table for this number of channels.
    int64_t (*table_bytes)(int64_t channels);
    // Writes what vectors compute all rows with; `table` is aligned to 64 bytes. False where they cannot, because the
    // weights have more than 16 bits or the factors are too large: give `row` null then.
    bool (*prepare)(const LayerNormParameters& parameters, void* table);
    // x: [channels] int32
    // residual: [channels] int8 or int32, or null
    // y: [channels] int8
    // wide: [channels] int32 holding 16-bit values at wide_scale, or null
    void (*row)(const int32_t* x, const void* residual, const LayerNormParameters& parameters, const void* table,
                const LayerNormScratch& scratch, int8_t* y, int32_t* wide);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(IntLayerNormKernel, int_layer_norm_kernel)
