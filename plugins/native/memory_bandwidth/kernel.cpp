#include "plugins/native/memory_bandwidth/kernel.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

using Vector = uint64_t __attribute__((vector_size(64)));  // sums wrap around

static int64_t read(const void* memory, int64_t bytes) {
    const Vector* const vectors = static_cast<const Vector*>(__builtin_assume_aligned(memory, 64));
    Vector total[8] = {};
    for (int64_t i = 0; i < bytes / 64; i += 8) {
        for (int v = 0; v < 8; ++v) total[v] += vectors[i + v];
    }
    uint64_t sum = 0;
    for (int v = 0; v < 8; ++v) {
        for (int lane = 0; lane < 8; ++lane) sum += total[v][lane];
    }
    return int64_t(sum);
}

}  // namespace

const MemoryBandwidthKernel memory_bandwidth_kernel = {read};

}  // namespace intaglio::INTAGLIO_ISA
