// Products of rows of x with rows of a sparse matrix S, added to those with a packed weight; float16 or float32, the sums in
// float32.
//
// Rows of any length are shared out evenly (SqueezeLLM, appendix B): the lanes of a warp take the non-zeros of a row of S in pieces of
// 32, and a block's warps divide either the pieces or the rows of x.
// - multiply_pieces, for fewer rows of x than warps: warp c + p takes piece p of channel c. So short rows are spread over the
//   warps, and a long one is spread over all threads.
// - multiply_rows, for more: each warp multiplies its own rows of x with all non-zeros of the block.
// Sums are added in an order that depends on nothing but the numbers of rows, and so the result is the same each time.
#pragma once

#include "cuda/half.cuh"
#include "cuda/warp.cuh"

namespace sparse_rows {

constexpr int PIECE = 32;    // non-zeros, one of each lane
constexpr int TOGETHER = 8;  // products of a lane, at least, whose loads are under way together
constexpr int CHANNELS_TOGETHER = 4;

// values: float16 or float32 [nnz], by the bytes of a value; columns: int32 [nnz]; row_offsets: int32 [channels + 1].
struct Matrix {
    const void* __restrict__ values;
    const int32_t* __restrict__ columns;
    const int32_t* __restrict__ row_offsets;
    int32_t value_bytes;
};

// In place of a matrix: nothing is added.
struct None {};

// Adds this lane's products to sums[i][m], of channel i and row m of x: of the non-zeros begin[i] + lane, and every STRIDE-th after it,
// before end[i]. x: of its rows, `pitch` apart, `live` exist.
template <int STRIDE, int CHANNELS, int ROWS, class Float>
__device__ __forceinline__ void multiply(
    float (&sums)[CHANNELS][ROWS], const Matrix& matrix, const int32_t (&begin)[CHANNELS], const int32_t (&end)[CHANNELS],
    const Float* __restrict__ x, int64_t pitch, int32_t live) {
    constexpr int STEPS = TOGETHER > CHANNELS * ROWS ? TOGETHER / (CHANNELS * ROWS) : 1;
    int32_t longest = 0;
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i) longest = max(longest, end[i] - begin[i]);
#pragma unroll 1
    for (int32_t first = threadIdx.x % PIECE; first < longest; first += STEPS * STRIDE) {
        int32_t column[CHANNELS][STEPS];  // or -1
        float value[CHANNELS][STEPS];
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const int32_t skipped = first + step * STRIDE, at = begin[i] + skipped;
                const bool exists = skipped < end[i] - begin[i];
                column[i][step] = exists ? matrix.columns[at] : -1;
                value[i][step] = exists ? half::element(matrix.values, matrix.value_bytes, at) : 0;
            }
#pragma unroll
        for (int i = 0; i < CHANNELS; ++i)
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int m = 0; m < ROWS; ++m)
                    if (column[i][step] >= 0 && m < live)
                        sums[i][m] += value[i][step] * half::number(x[m * pitch + column[i][step]]);
    }
}

// The products of up to ROWS rows of x with this warp's pieces of CHANNELS channels: add(row, channel, product), by one lane.
// first: the first of the channels; those beyond the last of `channels` are empty. x: [rows, depth].
template <int WARPS, int CHANNELS, int ROWS, class Float, class Add>
__device__ __forceinline__ void multiply_pieces(
    const Matrix& matrix, int32_t first, int32_t channels, const Float* __restrict__ x, int32_t depth, int32_t rows, const Add& add) {
    constexpr int EACH = CHANNELS / WARPS, LANES_EACH = warp::LANES / ROWS;
    const int lane = threadIdx.x % warp::LANES, warp_number = threadIdx.x / warp::LANES;
    const int32_t begin = matrix.row_offsets[min(first + min(lane, CHANNELS), channels)];  // of channel `lane`
    const int32_t length = __shfl_down_sync(warp::ALL, begin, 1) - begin;
#pragma unroll 1
    for (int piece = 0; piece < WARPS; ++piece) {
        if (!__any_sync(warp::ALL, length > piece * PIECE)) break;
        const int channel = (warp_number + WARPS - piece) % WARPS;  // and every WARPS-th
        int32_t begins[EACH], ends[EACH];
        float sums[EACH][ROWS] = {};
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            begins[i] = __shfl_sync(warp::ALL, begin, channel + i * WARPS) + piece * PIECE;
            ends[i] = __shfl_sync(warp::ALL, begin + length, channel + i * WARPS);
        }
        multiply<WARPS * PIECE>(sums, matrix, begins, ends, x, depth, rows);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const float sum = warp::sum_each(sums[i]);
            if (lane % LANES_EACH == 0 && lane / LANES_EACH < rows) add(lane / LANES_EACH, channel + i * WARPS, sum);
        }
    }
}

// The products of this warp's rows of x, every WARPS-th of up to EACH·WARPS, with CHANNELS channels; the same otherwise.
template <int WARPS, int CHANNELS, int EACH, class Float, class Add>
__device__ __forceinline__ void multiply_rows(
    const Matrix& matrix, int32_t first, int32_t channels, const Float* __restrict__ x, int32_t depth, int32_t rows, const Add& add) {
    constexpr int LANES_EACH = warp::LANES / EACH;
    const int lane = threadIdx.x % warp::LANES, warp_number = threadIdx.x / warp::LANES;
    const int32_t live = max(rows - warp_number + WARPS - 1, 0) / WARPS;
    if (live == 0) return;
    x += int64_t(warp_number) * depth;
#pragma unroll 1
    for (int channel = 0; channel < CHANNELS; channel += CHANNELS_TOGETHER) {
        int32_t begins[CHANNELS_TOGETHER], ends[CHANNELS_TOGETHER];
        float sums[CHANNELS_TOGETHER][EACH] = {};
#pragma unroll
        for (int i = 0; i < CHANNELS_TOGETHER; ++i) {
            begins[i] = matrix.row_offsets[min(first + channel + i, channels)];
            ends[i] = matrix.row_offsets[min(first + channel + i + 1, channels)];
        }
        multiply<PIECE>(sums, matrix, begins, ends, x, int64_t(WARPS) * depth, live);
#pragma unroll
        for (int i = 0; i < CHANNELS_TOGETHER; ++i) {
            const float sum = warp::sum_each(sums[i]);
            const int m = lane / LANES_EACH;
            if (lane % LANES_EACH == 0 && m < live) add(warp_number + WARPS * m, channel + i, sum);
        }
    }
}

}  // namespace sparse_rows
