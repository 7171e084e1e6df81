// IntAdd: the sum of two tensors with factors of their own, rounded once; x and y broadcast.
#include "cuda/broadcast.cuh"
#include "cuda/elementwise.cuh"
#include "cuda/rounding.cuh"

namespace {

constexpr int THREADS = elementwise::THREADS;

// An input of int8 or int32, by the bytes of an element.
struct Operand {
    const void* data;
    int32_t bytes;
    broadcast::Shape shape;
    bool every_row, aligned;  // it has every row of the sum; quads can be loaded together

    __device__ __forceinline__ Operand(const void* data, int32_t bytes, const broadcast::Shape& shape, const broadcast::Shape& sum)
        : data(data), bytes(bytes), shape(shape) {
        every_row = shape.length[0] == sum.length[0] && shape.length[1] == sum.length[1] && shape.length[2] == sum.length[2];
        aligned = bytes == 1 ? quad::is_aligned(static_cast<const int8_t*>(data), sum.length[3])
                             : quad::is_aligned(static_cast<const int32_t*>(data), sum.length[3]);
    }
    // Four elements, or four bytes: unpacked at once, they would be waited for before the next row's load begins.
    __device__ __forceinline__ void load(const broadcast::Place& place, int32_t channel, int32_t count, int32_t (&values)[quad::SIZE]) const {
        int64_t start = every_row ? int64_t(place.row) * shape.length[3] : place.start_in(shape);
        if (shape.length[3] == 1) {  // one element for all channels
            const int32_t one = bytes == 1 ? static_cast<const int8_t*>(data)[start] : static_cast<const int32_t*>(data)[start];
#pragma unroll
            for (int i = 0; i < quad::SIZE; ++i) values[i] = one;
            return;
        }
        start += channel;
        if (are_bytes(count)) values[0] = *reinterpret_cast<const int32_t*>(static_cast<const int8_t*>(data) + start);
        else if (bytes == 1) quad::load(static_cast<const int8_t*>(data) + start, count, aligned, values);
        else quad::load(static_cast<const int32_t*>(data) + start, count, aligned, values);
    }
    // Whether a row's four elements, of `count`, are loaded as four bytes.
    __device__ __forceinline__ bool are_bytes(int32_t count) const {
        return bytes == 1 && aligned && count >= quad::SIZE && shape.length[3] != 1;
    }
    __device__ __forceinline__ int32_t element(const int32_t (&values)[quad::SIZE], int i, int32_t count) const {
        return are_bytes(count) ? int8_t(uint32_t(values[0]) >> (8 * i)) : values[i];
    }
};

struct Pair {
    int32_t x, y;
};

struct Operands {
    struct Values {
        int32_t x[quad::SIZE], y[quad::SIZE];
    };

    Operand x, y;
    broadcast::Shape sum;

    __device__ __forceinline__ broadcast::Place place(int32_t row) const { return {row, sum}; }
    __device__ __forceinline__ void load(const broadcast::Place& place, int32_t channel, int32_t count, Values& values) const {
        x.load(place, channel, count, values.x);
        y.load(place, channel, count, values.y);
    }
    __device__ __forceinline__ Pair element(const Values& values, int i, int32_t count) const {
        return {x.element(values.x, i, count), y.element(values.y, i, count)};
    }
};

template <int BITS>
struct Sum {
    const int32_t *x_multiplier, *y_multiplier, *shift;
    int32_t x_multipliers, y_multipliers, shifts;

    __device__ __forceinline__ rounding::Sum factors(int32_t channel) const {
        return {x_multiplier[x_multipliers == 1 ? 0 : channel], y_multiplier[y_multipliers == 1 ? 0 : channel],
                shift[shifts == 1 ? 0 : channel]};
    }
    __device__ __forceinline__ int32_t operator()(const Pair& pair, const rounding::Sum& sum) const {
        return BITS == 8 ? sum.clip8(pair.x, pair.y) : sum.clip16(pair.x, pair.y);
    }
};

template <int BITS, class Out>
__device__ __forceinline__ void add(const void* x, const void* y, int32_t x_bytes, int32_t y_bytes, const broadcast::Shape& x_shape,
                                    const broadcast::Shape& y_shape, const broadcast::Shape& shape, const Sum<BITS>& work, Out* sum) {
    if (shape.length[0] == 0 || shape.length[1] == 0 || shape.length[2] == 0) return;
    const Operands operands = {{x, x_bytes, x_shape, shape}, {y, y_bytes, y_shape, shape}, shape};
    elementwise::apply(operands, shape.length[0] * shape.length[1] * shape.length[2], shape.length[3], work, sum);
}

}  // namespace

// x: [x0, x1, x2, x3] and y: [y0, y1, y2, y3], int8 or int32 by the bytes of an element; x_multiplier, y_multiplier,
// shift: int32, of 1 or `channels` by their lengths; sum: int8 [rows0, rows1, rows2, channels].
// Grid: (rows / 8, channels / 256), rounded up.
extern "C" __global__ void __launch_bounds__(THREADS) int_add_8(
    const void* x, const void* y, const int32_t* x_multiplier, const int32_t* y_multiplier, const int32_t* shift,
    int32_t x_multipliers, int32_t y_multipliers, int32_t shifts, int32_t x_bytes, int32_t y_bytes,
    int32_t rows0, int32_t rows1, int32_t rows2, int32_t channels, int32_t x0, int32_t x1, int32_t x2, int32_t x3,
    int32_t y0, int32_t y1, int32_t y2, int32_t y3, int8_t* sum) {
    const Sum<8> work = {x_multiplier, y_multiplier, shift, x_multipliers, y_multipliers, shifts};
    add(x, y, x_bytes, y_bytes, {{x0, x1, x2, x3}}, {{y0, y1, y2, y3}}, {{rows0, rows1, rows2, channels}}, work, sum);
}

// The same with sum: int32 holding 16-bit values.
extern "C" __global__ void __launch_bounds__(THREADS) int_add_16(
    const void* x, const void* y, const int32_t* x_multiplier, const int32_t* y_multiplier, const int32_t* shift,
    int32_t x_multipliers, int32_t y_multipliers, int32_t shifts, int32_t x_bytes, int32_t y_bytes,
    int32_t rows0, int32_t rows1, int32_t rows2, int32_t channels, int32_t x0, int32_t x1, int32_t x2, int32_t x3,
    int32_t y0, int32_t y1, int32_t y2, int32_t y3, int32_t* sum) {
    const Sum<16> work = {x_multiplier, y_multiplier, shift, x_multipliers, y_multipliers, shifts};
    add(x, y, x_bytes, y_bytes, {{x0, x1, x2, x3}}, {{y0, y1, y2, y3}}, {{rows0, rows1, rows2, channels}}, work, sum);
}
