// IntLinear: y = epilogue(x·weight + bias), the matrix product on the matrix unit (cuda/gemm.cuh).
//
// Of every kernel: x: int8 [m, k]; weight: int8 [k, n], row-major as in the bundle; bias: int32 [n]; each factor:
// int32 [n] or [1], its length given. Up to `few` rows the blocks are Narrow: the grid is (columns / 32, rows / 16), else
// (columns / 128, rows / 64), rounded up; THREADS threads.
#include "cuda/epilogue.cuh"
#include "cuda/gemm.cuh"

namespace {

constexpr int THREADS = gemm::THREADS;

template <class Epilogue, class Out>
__device__ __forceinline__ void linear(int8_t* shared, const int8_t* x, const int8_t* weight, int32_t m, int32_t k, int32_t n,
                                       int32_t few, const Epilogue& epilogue, Out* y) {
    if (m <= few) {
        using gemm::Narrow;
        const gemm::Problem problem = {x, weight, m, k, n, int32_t(blockIdx.y) * Narrow::M, int32_t(blockIdx.x) * Narrow::N};
        gemm::Sums<Narrow> sums = {};
        gemm::multiply<Narrow>(sums, problem, shared);
        gemm::finish_and_store(sums, problem, epilogue, shared, y);
    } else {
        using gemm::Wide;
        const gemm::Problem problem = {x, weight, m, k, n, int32_t(blockIdx.y) * Wide::M, int32_t(blockIdx.x) * Wide::N};
        gemm::Sums<Wide> sums = {};
        gemm::multiply<Wide>(sums, problem, shared);
        gemm::finish(sums, problem, epilogue);
        gemm::store(sums, problem, y);
    }
}

}  // namespace

// y: int32 [m, n], the sums.
extern "C" __global__ void __launch_bounds__(THREADS) int_linear_32(
    const int8_t* x, const int8_t* weight, const int32_t* bias, int32_t m, int32_t k, int32_t n, int32_t few, int32_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    linear(shared, x, weight, m, k, n, few, epilogue::Sum{bias}, y);
}

// y: int32 [m, n] holding 16-bit values.
extern "C" __global__ void __launch_bounds__(THREADS) int_linear_16(
    const int8_t* x, const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift,
    int32_t m, int32_t k, int32_t n, int32_t few, int32_t multipliers, int32_t shifts, int32_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    linear(shared, x, weight, m, k, n, few, epilogue::Requantize<16>{bias, {multiplier, shift, multipliers, shifts}}, y);
}

// y: int8 [m, n].
extern "C" __global__ void __launch_bounds__(THREADS) int_linear_8(
    const int8_t* x, const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift,
    int32_t m, int32_t k, int32_t n, int32_t few, int32_t multipliers, int32_t shifts, int8_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    linear(shared, x, weight, m, k, n, few, epilogue::Requantize<8>{bias, {multiplier, shift, multipliers, shifts}}, y);
}

// y: int8 [m, n], of gelu. The sums are requantised to i-GELU's inner scale; saturation, normalize, square_shift and coefficient are
// its constants, out_multiplier and out_shift bring its result to 8 bits, with out_zero - 128 for 0.
extern "C" __global__ void __launch_bounds__(THREADS) int_linear_gelu(
    const int8_t* x, const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift,
    int32_t m, int32_t k, int32_t n, int32_t few, int32_t multipliers, int32_t shifts,
    int32_t saturation, int32_t normalize, int32_t square_shift, int32_t coefficient, int32_t out_multiplier, int32_t out_shift,
    int32_t out_zero, int8_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    const intaglio::GeluConstants constants = {0, 0, saturation, normalize, square_shift, coefficient, out_multiplier, out_shift};
    const epilogue::Gelu activated = {bias, {multiplier, shift, multipliers, shifts}, constants, {}, out_zero - 128};
    linear(shared, x, weight, m, k, n, few, activated, y);
}

// The same with factors for each column at the end.
extern "C" __global__ void __launch_bounds__(THREADS) int_linear_gelu_channels(
    const int8_t* x, const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift,
    const int32_t* out_multiplier, const int32_t* out_shift,
    int32_t m, int32_t k, int32_t n, int32_t few, int32_t multipliers, int32_t shifts,
    int32_t saturation, int32_t normalize, int32_t square_shift, int32_t coefficient, int32_t out_multipliers, int32_t out_shifts,
    int32_t out_zero, int8_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    const intaglio::GeluConstants constants = {0, 0, saturation, normalize, square_shift, coefficient, 0, 0};
    const epilogue::Factors out = {out_multiplier, out_shift, out_multipliers, out_shifts};
    const epilogue::Gelu activated = {bias, {multiplier, shift, multipliers, shifts}, constants, out, out_zero - 128};
    linear(shared, x, weight, m, k, n, few, activated, y);
}

// y: int8 [m, n], of gelu with factors for each column, times gate: int32 [m, n], by the gate's factors.
// Two blocks of a multiprocessor: for three the compiler keeps registers in memory.
extern "C" __global__ void __launch_bounds__(THREADS, 2) int_linear_gelu_gate(
    const int8_t* x, const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift,
    const int32_t* out_multiplier, const int32_t* out_shift,
    const int32_t* gate, const int32_t* gate_multiplier, const int32_t* gate_shift,
    int32_t m, int32_t k, int32_t n, int32_t few, int32_t multipliers, int32_t shifts,
    int32_t saturation, int32_t normalize, int32_t square_shift, int32_t coefficient, int32_t out_multipliers, int32_t out_shifts,
    int32_t gate_multipliers, int32_t gate_shifts, int8_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    const intaglio::GeluConstants constants = {0, 0, saturation, normalize, square_shift, coefficient, 0, 0};
    const epilogue::Factors out = {out_multiplier, out_shift, out_multipliers, out_shifts};
    const epilogue::Gelu activated = {bias, {multiplier, shift, multipliers, shifts}, constants, out, 0};
    const epilogue::Factors scale = {gate_multiplier, gate_shift, gate_multipliers, gate_shifts};
    linear(shared, x, weight, m, k, n, few, epilogue::Gated{activated, gate, scale, int64_t(m) * n}, y);
}

// y: int32 [m, n], 16-bit values times `multiple` and residual: int32 [m, n].
extern "C" __global__ void __launch_bounds__(THREADS) int_linear_16_residual(
    const int8_t* x, const int8_t* weight, const int32_t* bias, const int32_t* multiplier, const int32_t* shift,
    const int32_t* residual, const int32_t* multiple,
    int32_t m, int32_t k, int32_t n, int32_t few, int32_t multipliers, int32_t shifts, int32_t multiples, int32_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    const epilogue::Requantize<16> rounded = {bias, {multiplier, shift, multipliers, shifts}};
    linear(shared, x, weight, m, k, n, few, epilogue::Residual{rounded, residual, multiple, multiples, int64_t(m) * n}, y);
}
