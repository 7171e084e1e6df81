// Requantize: y = clip(round(x·multiplier / 2^shift)), the multiplier and the shift per channel or one for all.
#include "cuda/elementwise.cuh"
#include "cuda/epilogue.cuh"

namespace {

constexpr int THREADS = elementwise::THREADS;

}  // namespace

// x: int32 [rows, channels]; multiplier: int32 [multipliers], shift: int32 [shifts], 1 or channels each;
// y: int8 [rows, channels]. Grid: (rows / 8, channels / 256), rounded up.
extern "C" __global__ void __launch_bounds__(THREADS) requantize_8(
    const int32_t* x, const int32_t* multiplier, const int32_t* shift,
    int32_t rows, int32_t channels, int32_t multipliers, int32_t shifts, int8_t* y) {
    const epilogue::Requantize<8> work = {nullptr, {multiplier, shift, multipliers, shifts}};
    elementwise::apply(elementwise::Plain(x, channels), rows, channels, work, y);
}

// The same with y: int32 [rows, channels] holding 16-bit values.
extern "C" __global__ void __launch_bounds__(THREADS) requantize_16(
    const int32_t* x, const int32_t* multiplier, const int32_t* shift,
    int32_t rows, int32_t channels, int32_t multipliers, int32_t shifts, int32_t* y) {
    const epilogue::Requantize<16> work = {nullptr, {multiplier, shift, multipliers, shifts}};
    elementwise::apply(elementwise::Plain(x, channels), rows, channels, work, y);
}
