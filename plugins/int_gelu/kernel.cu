// IntGelu: i-GELU of int32 values as int8.
#include "cuda/elementwise.cuh"
#include "cuda/epilogue.cuh"

namespace {

constexpr int THREADS = elementwise::THREADS;

// i-GELU at its inner scale, and `out` to 8 bits: per channel, or without pointers the constants' for all.
struct Curve {
    intaglio::GeluConstants constants;
    epilogue::Factors out;
    int32_t zero_point;

    __device__ __forceinline__ rounding::ShortFactor factors(int32_t channel) const {
        const rounding::ShortFactor one(constants.out_multiplier, constants.out_shift);
        return out.multiplier ? epilogue::factor_of<rounding::ShortFactor>(out, channel) : one;
    }
    __device__ __forceinline__ int32_t operator()(int32_t x, const rounding::ShortFactor& factor) const {
        const rounding::Factor scale(constants.multiplier, constants.shift);
        return factor.clip8(intaglio::gelu(scale.clip16(x), constants), zero_point);
    }
};

}  // namespace

// x: int32 [rows, channels]; y: int8 [rows, channels]; from inner_multiplier on i-GELU's constants. out_zero: the zero point plus 128.
// Grid: (rows / 8, channels / 256), rounded up.
extern "C" __global__ void __launch_bounds__(THREADS) int_gelu(
    const int32_t* x, int32_t rows, int32_t channels, int32_t inner_multiplier, int32_t inner_shift, int32_t saturation,
    int32_t normalize, int32_t square_shift, int32_t coefficient, int32_t out_multiplier, int32_t out_shift, int32_t out_zero, int8_t* y) {
    const intaglio::GeluConstants constants = {inner_multiplier, inner_shift, saturation,     normalize,
                                               square_shift,     coefficient, out_multiplier, out_shift};
    elementwise::apply(elementwise::Plain(x, channels), rows, channels, Curve{constants, {}, out_zero - 128}, y);
}

// The same with multiplier: int32 [multipliers] and shift: int32 [shifts], 1 or channels each, at the end.
extern "C" __global__ void __launch_bounds__(THREADS) int_gelu_channels(
    const int32_t* x, const int32_t* multiplier, const int32_t* shift, int32_t rows, int32_t channels, int32_t multipliers, int32_t shifts,
    int32_t inner_multiplier, int32_t inner_shift, int32_t saturation, int32_t normalize, int32_t square_shift, int32_t coefficient,
    int32_t out_zero, int8_t* y) {
    const intaglio::GeluConstants constants = {inner_multiplier, inner_shift, saturation, normalize, square_shift, coefficient, 0, 0};
    const Curve curve = {constants, {multiplier, shift, multipliers, shifts}, out_zero - 128};
    elementwise::apply(elementwise::Plain(x, channels), rows, channels, curve, y);
}
