// CsrMatMul: y + x·Sᵀ, S in compressed sparse rows; float16 or float32, the sums in float32.
//
// Work is shared out twice, and evenly, for rows of any length (SqueezeLLM, appendix B):
// - Row r of S has the place r + row_offsets[r], which counts the rows and the non-zeros before it. A block owns the rows
//   whose places lie in its WINDOW: rows and non-zeros together are as many for every block, but for the rest of its last
//   row. So no sum is divided between blocks, and there is nothing to add up afterwards.
// - Within a block every thread takes an equal number of consecutive non-zeros, whichever rows they are of. A row in one
//   thread's piece alone has its sum there; the others' parts are added in the order of the threads.
// Nothing depends on which thread is first, and so the result is the same each time.
//
// A block does so for 8 rows of x (which one pass over the non-zeros serves), or for one where there is only one.
#include "cuda/half.cuh"
#include "cuda/warp.cuh"

namespace {

constexpr int THREADS = 128, WINDOW = 512, ROWS = 8;
constexpr int BATCH = 4;  // non-zeros whose loads are under way together

struct Matrix {
    const void* __restrict__ values;  // float16 or float32, by the bytes of a value
    const int32_t* __restrict__ columns;
    const int32_t* __restrict__ row_offsets;
    int32_t value_bytes, rows;
};

struct Shared {
    int32_t bounds[2];            // the first row of the block, and the first beyond
    int32_t offsets[WINDOW + 1];  // row_offsets of the block's rows, and the end
    float sums[ROWS][WINDOW];     // of rows that lie in one thread's piece
    float first[ROWS][THREADS];   // a thread's part of a row that began before its piece
    float last[ROWS][THREADS];    // ... of one that begins in its piece and goes on beyond
};

// The first row whose place is `place` or beyond, or the number of rows; by a whole warp, 32 candidates at a time.
__device__ __forceinline__ int32_t first_row(const Matrix& matrix, int64_t place) {
    int32_t low = 0, high = matrix.rows;  // the answer is one of low..high
    while (low < high) {
        const int32_t step = (high - low + 31) / 32, candidate = low + int32_t(threadIdx.x % 32) * step;
        const bool before = candidate < high && int64_t(candidate) + matrix.row_offsets[candidate] < place;
        const int32_t count = __popc(__ballot_sync(warp::ALL, before));
        high = min(high, low + count * step);
        if (count) low += (count - 1) * step + 1;
    }
    return low;
}

// A piece of the block's non-zeros: `each` for every thread but the last ones.
struct Pieces {
    int32_t start, each;

    __device__ __forceinline__ int thread_of(int32_t nonzero) const { return (nonzero - start) / each; }
};

// The first row of the block that ends beyond `nonzero`.
__device__ __forceinline__ int row_of(const int32_t* offsets, int rows, int32_t nonzero) {
    int low = 0, high = rows - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (offsets[middle + 1] <= nonzero) low = middle + 1;
        else high = middle;
    }
    return low;
}

template <int LIVE>
__device__ __forceinline__ void put(Shared& shared, const Pieces& pieces, int row, float (&sums)[LIVE]) {
    const int from = pieces.thread_of(shared.offsets[row]), to = pieces.thread_of(shared.offsets[row + 1] - 1);
    const int thread = threadIdx.x;
#pragma unroll
    for (int m = 0; m < LIVE; ++m) {
        float& place = from == to ? shared.sums[m][row] : from == thread ? shared.last[m][thread] : shared.first[m][thread];
        place = sums[m];
        sums[m] = 0;
    }
}

// This thread's piece of the products of LIVE rows of x; `x`: the first of them, of which `live` exist.
template <int LIVE, class Float>
__device__ __forceinline__ void multiply_piece(
    Shared& shared, const Pieces& pieces, const Matrix& matrix, int rows, const Float* __restrict__ x, int32_t live, int32_t depth) {
    const int32_t end = shared.offsets[rows];
    const int32_t begin = int32_t(min(int64_t(pieces.start) + int64_t(threadIdx.x) * pieces.each, int64_t(end)));
    const int32_t stop = int32_t(min(int64_t(begin) + pieces.each, int64_t(end)));
    if (begin == stop) return;
    int row = row_of(shared.offsets, rows, begin);
    float sums[LIVE] = {};
#pragma unroll 1
    for (int32_t nonzero = begin; nonzero < stop; nonzero += BATCH) {
        float products[BATCH][LIVE];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const int32_t at = min(nonzero + i, stop - 1), column = matrix.columns[at];
            const float value = half::element(matrix.values, matrix.value_bytes, at);
#pragma unroll
            for (int m = 0; m < LIVE; ++m) products[i][m] = value * half::number(x[int64_t(min(m, live - 1)) * depth + column]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (nonzero + i >= stop) break;
            if (nonzero + i == shared.offsets[row + 1]) {
                put(shared, pieces, row, sums);
                do ++row;
                while (shared.offsets[row + 1] == nonzero + i);
            }
#pragma unroll
            for (int m = 0; m < LIVE; ++m) sums[m] += products[i][m];
        }
    }
    put(shared, pieces, row, sums);
}

// The sum of one row of the block.
__device__ __forceinline__ float total(const Shared& shared, const Pieces& pieces, int m, int row) {
    if (shared.offsets[row] == shared.offsets[row + 1]) return 0;
    const int from = pieces.thread_of(shared.offsets[row]), to = pieces.thread_of(shared.offsets[row + 1] - 1);
    if (from == to) return shared.sums[m][row];
    float sum = shared.last[m][from];
    for (int thread = from + 1; thread <= to; ++thread) sum += shared.first[m][thread];
    return sum;
}

template <class Float>
__device__ __forceinline__ void csr_matmul(
    Shared& shared, const Float* __restrict__ x, const Matrix& matrix, const Float* __restrict__ y, int32_t x_rows, int32_t depth,
    Float* __restrict__ result) {
    const int32_t groups = (x_rows + ROWS - 1) / ROWS;
    if (groups == 0) return;
    const int32_t first_x = int32_t(blockIdx.x) % groups * ROWS, live = min(x_rows - first_x, ROWS);
    const int64_t window = int32_t(blockIdx.x) / groups + int64_t(threadIdx.x / 32);
    if (threadIdx.x < 64) shared.bounds[threadIdx.x / 32] = first_row(matrix, window * WINDOW);
    __syncthreads();
    const int32_t first = shared.bounds[0], rows = shared.bounds[1] - first;
    for (int row = threadIdx.x; row <= rows; row += THREADS) shared.offsets[row] = matrix.row_offsets[first + row];
    __syncthreads();
    const int32_t count = shared.offsets[rows] - shared.offsets[0];
    const Pieces pieces = {shared.offsets[0], max((count + THREADS - 1) / THREADS, 1)};
    const Float* first_row_of_x = x + int64_t(first_x) * depth;
    if (live == 1) multiply_piece<1>(shared, pieces, matrix, rows, first_row_of_x, live, depth);
    else multiply_piece<ROWS>(shared, pieces, matrix, rows, first_row_of_x, live, depth);
    __syncthreads();
    for (int32_t m = 0; m < live; ++m) {
        const int64_t at = int64_t(first_x + m) * matrix.rows + first;
        for (int row = threadIdx.x; row < rows; row += THREADS)
            half::store(result + at + row, half::number(y[at + row]) + total(shared, pieces, m, row));
    }
}

}  // namespace

// x: [x_rows, depth]; values: float16 or float32 [nnz], by value_bytes; columns: int32 [nnz]; row_offsets: int32
// [channels + 1]; y, result: [x_rows, channels], of x's dtype. Grid: windows of 512 rows and non-zeros, times groups of 8 rows.
extern "C" __global__ void __launch_bounds__(THREADS) csr_matmul_float16(
    const uint16_t* x, const void* values, const int32_t* columns, const int32_t* row_offsets, const uint16_t* y,
    int32_t x_rows, int32_t depth, int32_t channels, int32_t value_bytes, uint16_t* result) {
    __shared__ Shared shared;
    csr_matmul(shared, x, {values, columns, row_offsets, value_bytes, channels}, y, x_rows, depth, result);
}

extern "C" __global__ void __launch_bounds__(THREADS) csr_matmul_float32(
    const float* x, const void* values, const int32_t* columns, const int32_t* row_offsets, const float* y,
    int32_t x_rows, int32_t depth, int32_t channels, int32_t value_bytes, float* result) {
    __shared__ Shared shared;
    csr_matmul(shared, x, {values, columns, row_offsets, value_bytes, channels}, y, x_rows, depth, result);
}
