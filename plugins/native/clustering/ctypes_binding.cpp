// What plugins/native/clustering/__init__.py calls: rows of a matrix, each on its own.

#include <cstddef>
#include <cstdint>
#include <new>

#include "plugins/native/clustering/kernel.h"

#define INTAGLIO_EXPORT extern "C" __attribute__((visibility("default")))

// values, weights: [rows, n] float32; centroids: [rows, k] float32; masses: [rows, k] double. False: out of memory.
INTAGLIO_EXPORT bool intaglio_cluster_rows(int isa, const float* values, const float* weights, int64_t rows, int64_t n,
                                           int64_t k, float* centroids, double* masses) {
    const intaglio::ClusteringKernel& kernel = intaglio::clustering_kernel(intaglio::Isa(isa));
    constexpr std::align_val_t alignment{64};
    void* workspace = operator new(std::size_t(kernel.workspace_bytes(n, k)), alignment, std::nothrow);
    if (workspace == nullptr) return false;
    for (int64_t row = 0; row < rows; ++row) {
        kernel.cluster(values + row * n, weights + row * n, n, k, workspace, centroids + row * k, masses + row * k);
    }
    operator delete(workspace, alignment);
    return true;
}

// values: [rows, n] float32; centroids: [rows, k] float32, ascending; indices: [rows, n] uint8
INTAGLIO_EXPORT void intaglio_assign_rows(int isa, const float* values, int64_t rows, int64_t n, const float* centroids,
                                          int64_t k, uint8_t* indices) {
    const intaglio::ClusteringKernel& kernel = intaglio::clustering_kernel(intaglio::Isa(isa));
    for (int64_t row = 0; row < rows; ++row) {
        kernel.assign(values + row * n, n, centroids + row * k, k, indices + row * n);
    }
}
