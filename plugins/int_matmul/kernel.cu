// IntMatMul: y = epilogue(a·b) of two int8 activations, the matrix product on the matrix unit (cuda/gemm.cuh).
//
// Of every kernel: a: int8 [a0, a1, m, k]; b: int8 [b0, b1, k, n]; the first two axes broadcast to [batch0, batch1]; the
// factors: int32 [n] or [1], their lengths given. Grid: (batches, rows / 64, columns / 128), rounded up.
#include "cuda/epilogue.cuh"
#include "cuda/gemm.cuh"

namespace {

constexpr int THREADS = gemm::THREADS;

struct Batches {
    int32_t batch1, a0, a1, b0, b1;
};

template <class Epilogue, class Out>
__device__ __forceinline__ void product(
    int8_t* shared, const int8_t* a, const int8_t* b, int32_t m, int32_t k, int32_t n, const Batches& batches,
    const Epilogue& epilogue, Out* y) {
    if (batches.a0 == 0 || batches.a1 == 0 || batches.b0 == 0 || batches.b1 == 0) return;
    const int32_t first = blockIdx.x / batches.batch1, second = blockIdx.x % batches.batch1;
    const int64_t a_batch = int64_t(batches.a0 == 1 ? 0 : first) * batches.a1 + (batches.a1 == 1 ? 0 : second);
    const int64_t b_batch = int64_t(batches.b0 == 1 ? 0 : first) * batches.b1 + (batches.b1 == 1 ? 0 : second);
    const gemm::Problem problem = {a + a_batch * m * k, b + b_batch * k * n, m, k, n,
                                   int32_t(blockIdx.y) * gemm::Wide::M, int32_t(blockIdx.z) * gemm::Wide::N};
    gemm::Sums<gemm::Wide> sums = {};
    gemm::multiply<gemm::Wide>(sums, problem, shared);
    gemm::finish(sums, problem, epilogue);
    gemm::store(sums, problem, y + int64_t(blockIdx.x) * m * n);
}

}  // namespace

// y: int32 [batch0, batch1, m, n], the sums.
extern "C" __global__ void __launch_bounds__(THREADS) int_matmul_32(
    const int8_t* a, const int8_t* b, int32_t m, int32_t k, int32_t n,
    int32_t batch1, int32_t a0, int32_t a1, int32_t b0, int32_t b1, int32_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    product(shared, a, b, m, k, n, {batch1, a0, a1, b0, b1}, epilogue::Sum{nullptr}, y);
}

// y: int32, holding 16-bit values.
extern "C" __global__ void __launch_bounds__(THREADS) int_matmul_16(
    const int8_t* a, const int8_t* b, const int32_t* multiplier, const int32_t* shift, int32_t m, int32_t k, int32_t n,
    int32_t batch1, int32_t a0, int32_t a1, int32_t b0, int32_t b1, int32_t multipliers, int32_t shifts, int32_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    product(shared, a, b, m, k, n, {batch1, a0, a1, b0, b1},
            epilogue::Requantize<16>{nullptr, {multiplier, shift, multipliers, shifts}}, y);
}

// y: int8.
extern "C" __global__ void __launch_bounds__(THREADS) int_matmul_8(
    const int8_t* a, const int8_t* b, const int32_t* multiplier, const int32_t* shift, int32_t m, int32_t k, int32_t n,
    int32_t batch1, int32_t a0, int32_t a1, int32_t b0, int32_t b1, int32_t multipliers, int32_t shifts, int8_t* y) {
    __shared__ __align__(128) int8_t shared[gemm::SHARED_BYTES];
    product(shared, a, b, m, k, n, {batch1, a0, a1, b0, b1},
            epilogue::Requantize<8>{nullptr, {multiplier, shift, multipliers, shifts}}, y);
}
