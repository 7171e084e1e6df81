// The key by which micro-kernels of plugins/micro_kernels are chosen.
#pragma once

#include <cstdint>

namespace intaglio {

// A micro-kernel of an operator. The first three numbers are the case that it is for: bits of a number of the weight,
// bytes of x in fixed point (0: float32), rows of x at once; the others how it goes about it: vectors along K of a step,
// and vectors of rows of the weight.
struct MicroKernelName {
    int32_t bits, planes, rows, m_u, t_u;
};

}  // namespace intaglio
