// i-LayerNorm of one row of int32, as 16-bit values and as int8.
#pragma once

#include <cstdint>

#include "plugins/integer_math.h"
#include "plugins/isa.h"

namespace intaglio {

struct LayerNormParameters {
    LayerNormConstants constants;
    const int32_t* weight;      // [channels]
    const int32_t* bias;        // [channels]
    const int32_t* multiplier;  // [channels] from wide_scale to y's
    const int32_t* shift;       // [channels], 0..62
};

struct IntLayerNormKernel {
    // Bytes of a table for so many channels.
    int64_t (*table_bytes)(int64_t channels);
    // Writes what vectors compute all rows with; `table` is aligned to 64 bytes. False where they cannot, because the
    // weights have more than 16 bits or the factors are too large: give `row` null then.
    bool (*prepare)(const LayerNormParameters& parameters, void* table);
    // x: [channels] int32
    // scratch: [channels rounded up to a multiple of 64] int16
    // y: [channels] int8
    // wide: [channels] int32 holding 16-bit values at wide_scale, or null
    void (*row)(const int32_t* x, const LayerNormParameters& parameters, const void* table, int16_t* scratch, int8_t* y,
                int32_t* wide);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(IntLayerNormKernel, int_layer_norm_kernel)
