// NumPy's broadcasting of up to four axes: an axis of length 1 is repeated.
#pragma once

#include "integer_math.h"

namespace broadcast {

// A shape of four axes; leading ones of 1 where an array has fewer.
struct Shape {
    int32_t length[4];
};

// Where the row [first, second, third] of a larger shape begins in an array of the shape `array`.
__device__ __forceinline__ int64_t row_start(int32_t first, int32_t second, int32_t third, const Shape& array) {
    int64_t start = array.length[0] == 1 ? 0 : first;
    start = start * array.length[1] + (array.length[1] == 1 ? 0 : second);
    start = start * array.length[2] + (array.length[2] == 1 ? 0 : third);
    return start * array.length[3];
}

// A row by its number in the shape `whole`, and those behind it: a division takes as long as what is done with a row.
struct Place {
    const Shape& whole;
    int32_t row, first, second, third;

    __device__ __forceinline__ Place(int32_t row, const Shape& whole) : whole(whole), row(row), third(row % whole.length[2]) {
        const int32_t rest = row / whole.length[2];
        first = rest / whole.length[1];
        second = rest % whole.length[1];
    }
    __device__ __forceinline__ void next() {
        ++row;
        if (++third < whole.length[2]) return;
        third = 0;
        if (++second < whole.length[1]) return;
        second = 0;
        ++first;
    }
    __device__ __forceinline__ int64_t start_in(const Shape& array) const { return row_start(first, second, third, array); }
};

}  // namespace broadcast
