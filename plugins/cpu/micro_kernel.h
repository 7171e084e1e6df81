// The key by which micro-kernels of plugins/micro_kernels are chosen.
#pragma once

#include <cstdint>

namespace intaglio {

// A micro-kernel of an operator. The first three numbers are the case that it is for: bits of a number of the weight,
// bytes of x in fixed point (0: float32), rows of x at once; the next two how it goes about it: vectors along K of a step,
// and vectors of rows of the weight. `levels` is 1 where GroupMatMul's numbers stand for levels.
struct MicroKernelName {
    int32_t bits, planes, rows, m_u, t_u, levels;
};

// A micro-kernel to be taken for its case. `prefetch` is the largest group of a weight with which it prefetches far ahead (0: it
// never does); LutMatMul's, which has no groups, either does or does not.
struct MicroKernelWish {
    MicroKernelName name;
    int32_t prefetch;
};

}  // namespace intaglio
