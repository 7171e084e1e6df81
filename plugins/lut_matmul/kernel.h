// A linear layer whose weight is stored as indices into one table per output row: y = x·wᵀ, w[n, k] = lut[n, index].
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/micro_kernel.h"

namespace intaglio {

// How a weight is kept; `choose` decides.
//     real      tables of float32; x is float32                                            every instruction set
//     integer   tables of `tables` bytes (see below), x in fixed point of `planes` bytes   avx512vnni and later, dotprod,
//                                                                                          tiles; of 2 bytes avx2
struct LutFormat {
    int32_t bits;      // of an index: 2, 3, 4
    int32_t planes;    // 0: real; 1 to 3: bytes of x
    int32_t tables;    // 1: entries are (factor of the row)·int8, exactly; 2: rounded to 16 bits
    int64_t depth;     // K
    int64_t rows;      // N
};

// Weights are packed in blocks of 16 rows, x in rows. x: [count, K] float32; y: [count, N] float32.
struct LutMatMulKernel {
    static constexpr int64_t BLOCK = 16;

    // lut: [rows, 2^bits] float32; activation_bits: 8, 16 or 32
    LutFormat (*choose)(const float* lut, int64_t rows, int64_t depth, int32_t bits, int32_t activation_bits);
    int64_t (*weight_bytes)(const LutFormat& format);
    // Blocks begin..end-1; indices: [rows, depth·bits/32] int32 as bit_packing packs them; packed: aligned to 64 bytes
    void (*pack_weight)(const LutFormat& format, const int32_t* indices, const float* lut, int64_t begin, int64_t end,
                        void* packed);
    int64_t (*x_bytes)(const LutFormat& format, int64_t count);
    void (*pack_x)(const LutFormat& format, const float* x, int64_t count, int64_t begin, int64_t end, void* packed);
    // How many blocks are computed together: `begin` of `run` best is a multiple.
    int64_t (*blocks_at_once)(const LutFormat& format, int64_t count);
    // Blocks begin..end-1 of the rows of y.
    void (*run)(const LutFormat& format, const void* x, int64_t count, const void* packed, float* y, int64_t begin,
                int64_t end);
    bool (*select)(const MicroKernelWish& wish);  // for its case from now on; false where there is no such micro-kernel
};

}  // namespace intaglio

INTAGLIO_DECLARE_TILE_KERNEL(LutMatMulKernel, lut_matmul_kernel)
