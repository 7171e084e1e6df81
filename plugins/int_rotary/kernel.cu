// IntRotary: pairs of channels of each head turned by the angles of their row, from 16 bits to int8.
#include "cuda/elementwise.cuh"
#include "cuda/rounding.cuh"

namespace {

constexpr int THREADS = elementwise::THREADS;

// Both channels of a pair, and its angle: each result is computed alone, and reads what its partner reads, too.
struct Pairs {
    struct Values {
        int32_t own[quad::SIZE], other[quad::SIZE], cosine[quad::SIZE], sine[quad::SIZE];  // the sine with the other's sign
    };
    struct Place {
        int32_t row;
        __device__ __forceinline__ void next() { ++row; }
    };

    const int32_t *__restrict__ x, *__restrict__ cosine, *__restrict__ sine;
    int32_t channels, half, length;
    bool aligned;  // four channels of a half can be loaded together

    __device__ __forceinline__ Pairs(const int32_t* x, const int32_t* cosine, const int32_t* sine, int32_t channels, int32_t half, int32_t length)
        : x(x), cosine(cosine), sine(sine), channels(channels), half(half), length(length),
          aligned(quad::is_aligned(x, half) && quad::is_aligned(cosine, half) && quad::is_aligned(sine, half)) {}
    __device__ __forceinline__ Place place(int32_t row) const { return {row}; }
    __device__ __forceinline__ void load(const Place& place, int32_t channel, int32_t count, Values& values) const {
        const int32_t* const row = x + int64_t(place.row) * channels;
        const int64_t angle = int64_t(place.row % length) * half;
        if (aligned) {  // all four are of one half
            const int32_t index = channel % half;
            const bool is_second = channel / half % 2;
            quad::load(row + channel, count, true, values.own);
            quad::load(row + (is_second ? channel - half : channel + half), quad::SIZE, true, values.other);
            quad::load(cosine + angle + index, quad::SIZE, true, values.cosine);
            quad::load(sine + angle + index, quad::SIZE, true, values.sine);
#pragma unroll
            for (int i = 0; i < quad::SIZE; ++i) values.sine[i] = is_second ? limit(values.sine[i]) : -limit(values.sine[i]);
            return;
        }
#pragma unroll
        for (int i = 0; i < quad::SIZE; ++i) {
            if (i >= count) continue;
            const int32_t index = (channel + i) % half;
            const bool is_second = (channel + i) / half % 2;
            values.own[i] = row[channel + i];
            values.other[i] = row[is_second ? channel + i - half : channel + i + half];
            values.cosine[i] = cosine[angle + index];
            values.sine[i] = is_second ? limit(sine[angle + index]) : -limit(sine[angle + index]);
        }
    }
    __device__ __forceinline__ int32_t element(const Values& values, int i, int32_t count) const {
        if (i >= count) return 0;
        return limit16(values.own[i]) * limit(values.cosine[i]) + limit16(values.other[i]) * values.sine[i];
    }
    __device__ __forceinline__ static int32_t limit(int32_t q14) { return min(max(q14, -(1 << 14)), 1 << 14); }
    __device__ __forceinline__ static int32_t limit16(int32_t value) { return min(max(value, -32768), 32767); }
};

// One factor for all.
struct Requantize {
    rounding::Factor factor;

    __device__ __forceinline__ rounding::Factor factors(int32_t) const { return factor; }
    __device__ __forceinline__ int32_t operator()(int32_t turned, const rounding::Factor& factor) const { return factor.clip8(turned); }
};

}  // namespace

// x: int32 [rows, channels], channels = heads·2·half; cosine, sine: int32 [length, half], for row r the row r modulo length; multiplier, shift: int32 [1]; y: int8 [rows, channels].
// Grid: (rows / 8, channels / 256), rounded up.
extern "C" __global__ void __launch_bounds__(THREADS) int_rotary(
    const int32_t* x, const int32_t* cosine, const int32_t* sine, const int32_t* multiplier, const int32_t* shift,
    int32_t rows, int32_t channels, int32_t half, int32_t length, int8_t* y) {
    if (rows == 0 || half == 0) return;
    const Requantize work = {rounding::Factor(multiplier[0], shift[0])};
    elementwise::apply(Pairs(x, cosine, sine, channels, half, length), rows, channels, work, y);
}
