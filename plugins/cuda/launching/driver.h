// The NVIDIA driver, opened when the first CUDA kernel is made: the library itself needs nothing of CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

namespace intaglio::cuda {

// Compiled kernels: a cubin, which may be empty, and PTX.
struct CudaImages {
    std::string cubin, ptx;

    bool operator<(const CudaImages& other) const { return std::tie(cubin, ptx) < std::tie(other.cubin, other.ptx); }
};

// Equal images are one object, which lives as long as the process.
const CudaImages* shared_images(CudaImages images);

// A kernel in the current context, loaded once: from the cubin, or where the driver does not take it from PTX. Throws
// Error if the driver is missing or takes neither.
void* cuda_kernel(const CudaImages* images, const std::string& name);

// Whether this thread has a current context.
bool has_cuda_context();

// Starts a kernel, called `name` in errors, on a stream. `arguments`: a pointer to each of its parameters. Throws Error.
void launch_cuda_kernel(void* kernel, const std::string& name, const uint32_t (&grid)[3], const uint32_t (&block)[3],
                        uint32_t shared_bytes, void* stream, void** arguments);

}  // namespace intaglio::cuda
