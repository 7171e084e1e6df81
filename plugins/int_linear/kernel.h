// int8 activations times an int8 weight, with what follows a linear layer in its epilogue (see spec.py).
#pragma once

#include <cstdint>

#include "plugins/integer_math.h"
#include "plugins/cpu/isa.h"

namespace intaglio {

// What follows the sums. `shift` in 0..62; all arrays [columns] int32.
struct Epilogue {
    int bits;                                   // 32: the sums; 16 and 8: requantised by multiplier and shift
    const int32_t *multiplier, *shift;          // not read with 32 bits
    const GeluConstants* gelu;                  // null, or with 8 bits: requantised to 16 bits, then i-GELU, and then
    const int32_t *out_multiplier, *out_shift;  // requantised by these, not read without gelu
    int out_zero_point = 0;                     // with gelu, without a gate: added to the results, -128..127
    const int32_t* gate = nullptr;              // null, or with gelu: [rows, columns], times which the results are
    const int32_t *gate_multiplier = nullptr, *gate_shift = nullptr;  // requantised to 8 bits by these
    const int32_t* residual = nullptr;  // null, or with 16 bits: [rows, columns], to which the results are added
    const int32_t* multiple = nullptr;  // times this, modulo 2^32
};

// y [rows, columns] = x [rows, depth] · weight [depth, columns] + bias [columns]
//
// weight and bias (null: zeros) are packed once, x in each call unless x_bytes is 0, both into memory of the caller's,
// aligned to 64 bytes.
// Then the tasks may run on any thread in any order; each thread's should follow each other, as they share the caches.
// IntMatMul uses this kernel too.
struct IntLinearKernel {
    int64_t (*weight_bytes)(int64_t depth, int64_t columns);
    void (*pack_weight)(const int8_t* weight, const int32_t* bias, int64_t depth, int64_t columns, void* packed);

    int64_t (*x_bytes)(int64_t rows, int64_t depth);  // 0: run reads x unpacked, aligned to 4 bytes
    // Packs rows first..last-1 of x.
    void (*pack_x)(const int8_t* x, int64_t first, int64_t last, int64_t depth, void* packed);

    int64_t (*tasks)(int64_t rows, int64_t depth, int64_t columns);
    // Computes tasks begin..end-1. x and weight: packed, but see x_bytes; y: int8 with 8 bits, else int32.
    void (*run)(const void* x, const void* weight, int64_t rows, int64_t depth, int64_t columns,
                const Epilogue& epilogue, void* y, int64_t begin, int64_t end);
};

}  // namespace intaglio

INTAGLIO_DECLARE_TILE_KERNEL(IntLinearKernel, int_linear_kernel)
