// What micro-kernels, and what looks weights up, are given.
#pragma once

#include <cstdint>

namespace intaglio::INTAGLIO_ISA {
namespace {

// What a micro-kernel works on: rows of x with rows of one group, over a stretch of K. What it writes is added to.
struct LutStretch {
    int64_t depth;         // of the stretch, in whole units
    const uint8_t* units;  // of the first row, those of the group's other rows beside them
    const uint8_t* tables;
    int64_t table_stride;  // bytes between the tables of two rows
    const float* x;        // where x is float32
    const int8_t* digits;  // where it is in fixed point, planes `plane_stride` apart
    int64_t x_stride, plane_stride;
    void* sums;            // float32, or int32 of fixed point: [rows of x, sums_stride apart][planes][BLOCK]
    int64_t sums_stride;
    bool prefetch;  // far ahead
};

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
