// Exact weighted k-means of numbers on a line, and the nearest centroid of each.
#pragma once

#include <cstdint>

#include "plugins/cpu/isa.h"

namespace intaglio {

struct ClusteringKernel {
    // Bytes of workspace that one row of `n` values in `k` clusters needs; the workspace is aligned to 64 bytes.
    int64_t (*workspace_bytes)(int64_t n, int64_t k);
    // The k centroids with the least sum of weight·(value - nearest centroid)², of all that there are.
    //
    // values: [n] float32, finite; weights: [n] float32, finite and not negative; all 0 counts as all equal; n > 0
    // centroids: [k] float32, ascending; with fewer distinct values than k the last one is repeated
    // masses: [k] double, the sum of the weights of each cluster, 0 for a repeated one
    void (*cluster)(const float* values, const float* weights, int64_t n, int64_t k, void* workspace, float* centroids,
                    double* masses);
    // indices: [n] uint8, of the nearest of `k` <= 256 ascending centroids; the lower one where two are as near
    void (*assign)(const float* values, int64_t n, const float* centroids, int64_t k, uint8_t* indices);
};

}  // namespace intaglio

INTAGLIO_DECLARE_KERNEL(ClusteringKernel, clustering_kernel)
