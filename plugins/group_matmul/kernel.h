// A linear layer whose weight is uniform within groups: y = x·wᵀ, w[n, k] = scale[n, g]·(q[n, k] - zero_point[n, g]), less
// minimum[g, n] where there are minimums, or scale[n, g]·levels[q[n, k]].
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/micro_kernel.h"

namespace intaglio {

// How the kernels keep the scales, or the minimums, of groups: see group_factors.h.
enum Kept : int32_t { FLOATS_KEPT, HALVES_KEPT, PRODUCTS_KEPT, HALF_PRODUCTS_KEPT };
struct FactorForm {
    Kept kept;
    int32_t shift;  // 2^shift groups share a factor
};

struct GroupFormat {
    int32_t bits;        // of q: 2 to 6, 8
    int32_t planes;      // 0: x in float32; 1 to 3: x in fixed point with that number of bytes (INTAGLIO_BYTE_PRODUCTS)
    int64_t depth;       // K
    int64_t group_size;  // a multiple of 16, with 3 and 5 bits of 32, that divides K; of what `group_size` returned
    int32_t parts;       // groups that have a scale and a zero point together
    int64_t rows;        // N
    int32_t zero_point;  // of all groups; NO_ZERO_POINT: each has its own
    bool has_levels;     // of 2^bits float32, 4 or 8 bits; the zero point is then MIDDLE
    int32_t computed;    // what `computed` returned
    bool has_minimums;   // which a weight is less by
    FactorForm scales, minimums;  // what `factor_form` returned
};

constexpr int32_t NO_ZERO_POINT = -1;
constexpr int32_t MIDDLE = 128;  // zero point of levels in bytes, and what is added to them where bytes are unsigned

// Weights are packed in tiles of 64 rows, x in rows. x: [count, K] float32; y: [count, N] float32.
struct GroupMatMulKernel {
    static constexpr int64_t TILE = 64;

    // Of x, in the format to use; levels: [2^bits] or nullptr
    int32_t (*planes)(int32_t activation_bits, int32_t bits, const float* levels);
    // The size of the groups whose products the kernel adds up in integers: that of the weight's, or of a part of each
    int64_t (*group_size)(int64_t group_size, int32_t planes, int32_t bits, bool has_levels);
    // How a kernel computes the levels of all numbers, of 8 bits, in less time than it reads them (levels.h); 0 where it reads them.
    // bytes: of all numbers
    int32_t (*computed)(const uint8_t* numbers, int64_t bytes, const float* levels);
    // Of rows·groups scales or minimums in float32, those of neighbouring rows and groups so many apart
    FactorForm (*factor_form)(const float* numbers, int64_t row_stride, int64_t group_stride, int64_t rows, int64_t groups,
                              int64_t group_size);
    int64_t (*weight_bytes)(const GroupFormat& format);
    // Tiles begin..end-1; numbers: [rows, depth·bits/32] int32 as bit_packing packs them; scales: [rows, groups / parts];
    // zero_points: the same, read where the format has none for all; minimums: [groups / parts, rows], levels: [2^bits], both
    // read where the format has them; packed: aligned to 64 bytes
    void (*pack_weight)(const GroupFormat& format, const int32_t* numbers, const float* scales, const uint8_t* zero_points,
                        const float* minimums, const float* levels, int64_t begin, int64_t end, void* packed);
    int64_t (*x_bytes)(const GroupFormat& format, int64_t count);
    void (*pack_x)(const GroupFormat& format, const float* x, int64_t count, int64_t begin, int64_t end, void* packed);
    // Tiles begin..end-1 of the rows of y.
    void (*run)(const GroupFormat& format, const void* x, int64_t count, const void* packed, float* y, int64_t begin,
                int64_t end);
    bool (*select)(const MicroKernelWish& wish);  // for its case from now on; false where there is no such micro-kernel
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(GroupMatMulKernel, group_matmul_kernel)
