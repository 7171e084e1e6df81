// The product of rows of float32 with a constant weight of float32, float16 or bfloat16, in float32.
//
// The weight is packed into panels of some columns, one after another, each with its columns' numbers of one depth side by
// side: so a row of x, for which reading the weight takes all the time, reads one stream. Each sum is one chain of additions
// along the depth, for any number of rows: the result of a row does not depend on the rows beside it.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

enum class WeightType { float32, float16, bfloat16 };

inline int64_t bytes_of(WeightType type) { return type == WeightType::float32 ? 4 : 2; }

struct PackedMatMulKernel {
    int64_t panel;  // columns of a panel
    // Packs rows begin..end-1 of weight [depth, columns] into panels [ceil(columns / panel)][depth][panel], zeros beyond columns.
    void (*pack)(WeightType type, const void* weight, int64_t begin, int64_t end, int64_t depth, int64_t columns, void* packed);
    // The same of rows of weight [columns, depth]; begin, and end unless it is `columns`, are multiples of `panel`.
    void (*pack_transposed)(WeightType type, const void* weight, int64_t begin, int64_t end, int64_t depth, void* packed);
    // y[r][n] for the columns of panels begin..end-1 of `rows` rows. x: [rows, depth], depth > 0; y: [rows, columns]
    void (*multiply)(WeightType type, const void* packed, int64_t begin, int64_t end, const float* x, int64_t rows,
                     int64_t depth, int64_t columns, float* y);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(PackedMatMulKernel, packed_matmul_kernel)
