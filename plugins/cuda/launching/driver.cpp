#include "plugins/cuda/launching/driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "plugins/error.h"

namespace intaglio::cuda {
namespace {

constexpr int SUCCESS = 0;  // CUresult

// The functions in use, as cuda.h declares them; contexts, modules, kernels and streams are pointers to hidden structs.
class Driver {
public:
    Driver() {
        library_ = dlopen("libcuda.so.1", RTLD_NOW);
        if (library_ == nullptr) throw Error("the NVIDIA driver's libcuda.so.1 cannot be loaded. Install the driver.");
        load(error_name, "cuGetErrorName");
        load(current_context, "cuCtxGetCurrent");
        load(load_module, "cuModuleLoadData");
        load(find_kernel, "cuModuleGetFunction");
        load(launch, "cuLaunchKernel");
    }

    // Throws Error, with the name of the status, unless it is SUCCESS.
    void check(const char* function, int status, const std::string& about) const {
        if (status == SUCCESS) return;
        const char* name = nullptr;
        error_name(status, &name);
        throw Error(std::string(function) + " of " + about + " failed: " +
                    (name != nullptr ? name : std::to_string(status)));
    }

    int (*error_name)(int status, const char** name);
    int (*current_context)(void** context);
    int (*load_module)(void** module, const void* image);
    int (*find_kernel)(void** kernel, void* module, const char* name);
    int (*launch)(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                  unsigned block_z, unsigned shared_bytes, void* stream, void** arguments, void** extra);

private:
    template <typename Function>
    void load(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library_, name));
        if (function == nullptr) throw Error(std::string("the NVIDIA driver has no ") + name + ". Update the driver.");
    }

    void* library_;
};

const Driver& driver() {
    static const Driver* const opened = new Driver();  // stays until the process ends: its threads may still use it
    return *opened;
}

void* current_context() {
    void* context = nullptr;
    driver().check("cuCtxGetCurrent", driver().current_context(&context), "this thread");
    return context;
}

void* load(const CudaImages& images, const std::string& name) {
    void* module = nullptr;
    int status = images.cubin.empty() ? SUCCESS : driver().load_module(&module, images.cubin.data());
    if (images.cubin.empty() || (status != SUCCESS && !images.ptx.empty())) {
        status = driver().load_module(&module, images.ptx.c_str());
    }
    driver().check("cuModuleLoadData", status, name);
    return module;
}

// All of these stay: a module is unloaded with its context.
std::mutex mutex;
std::set<CudaImages>& all_images() {
    static auto* const all = new std::set<CudaImages>();
    return *all;
}
using InContext = std::pair<void*, const CudaImages*>;
std::map<InContext, void*>& modules() {
    static auto* const all = new std::map<InContext, void*>();
    return *all;
}
std::map<std::tuple<InContext, std::string>, void*>& kernels() {
    static auto* const all = new std::map<std::tuple<InContext, std::string>, void*>();
    return *all;
}

}  // namespace

const CudaImages* shared_images(CudaImages images) {
    const std::lock_guard<std::mutex> lock(mutex);
    return &*all_images().insert(std::move(images)).first;
}

bool has_cuda_context() { return current_context() != nullptr; }

void* cuda_kernel(const CudaImages* images, const std::string& name) {
    void* const context = current_context();
    if (context == nullptr) throw Error("this thread has no CUDA context");
    const InContext key{context, images};
    const std::lock_guard<std::mutex> lock(mutex);
    const auto known = kernels().find({key, name});
    if (known != kernels().end()) return known->second;
    void*& module = modules()[key];
    if (module == nullptr) module = load(*images, name);
    void* kernel = nullptr;
    driver().check("cuModuleGetFunction", driver().find_kernel(&kernel, module, name.c_str()), name);
    kernels()[{key, name}] = kernel;
    return kernel;
}

void launch_cuda_kernel(void* kernel, const std::string& name, const uint32_t (&grid)[3], const uint32_t (&block)[3],
                        uint32_t shared_bytes, void* stream, void** arguments) {
    const int status = driver().launch(kernel, grid[0], grid[1], grid[2], block[0], block[1], block[2], shared_bytes, stream,
                                       arguments, nullptr);
    driver().check("cuLaunchKernel", status, name);
}

}  // namespace intaglio::cuda
