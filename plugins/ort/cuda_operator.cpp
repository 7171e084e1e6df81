// A node with a CUDA kernel, which plugins/ort/cuda_nodes.py made ready: of any operator.

#include <string>
#include <vector>

#include "plugins/cuda/launching/driver.h"
#include "plugins/cuda/launching/launch_program.h"
#include "plugins/ort/cuda_operator.h"

namespace intaglio::ort {
namespace {

std::string constant_bytes(const Node& node, size_t input) {
    const Tensor image = node.constant(input);
    if (!image) throw Error("its first inputs are not the constant images of a kernel. Build it again.");
    return {reinterpret_cast<const char*>(image.as<uint8_t>()), size_t(image.shape.elements())};
}

class CudaOperator final : public Kernel {
public:
    explicit CudaOperator(const Node& node)
        : name_(node.text("kernel")), program_(node.integers("launch"), node.output_count()) {
        images_ = cuda::shared_images({constant_bytes(node, 0), constant_bytes(node, 1)});
        if (cuda::has_cuda_context()) cuda::cuda_kernel(images_, name_);  // errors now, and no module is loaded while a graph is captured
    }

    void compute(const Context& context) const override {
        std::vector<Tensor> inputs;
        for (size_t i = 0; i < program_.inputs(); ++i) inputs.push_back(context.input(i + IMAGES));
        std::vector<const Shape*> shapes;
        for (const Tensor& input : inputs) shapes.push_back(input ? &input.shape : nullptr);
        cuda::LaunchProgram::Launch launch = program_.evaluate(shapes);
        std::vector<void*> tensors;
        for (const Tensor& input : inputs) {
            if (input) tensors.push_back(input.data);
        }
        const size_t given = tensors.size();
        bool empty = true;
        for (size_t i = 0; i < launch.outputs.size(); ++i) {
            const Tensor output = context.output(i, launch.outputs[i]);
            if (!output) throw Error("output " + std::to_string(i) + " is left out. Build it again.");
            tensors.push_back(output.data);
            empty = empty && output.shape.elements() == 0;
        }
        if (empty) return;
        std::vector<void*> arguments;  // inputs, scalars, outputs
        for (size_t i = 0; i < given; ++i) arguments.push_back(&tensors[i]);
        for (int32_t& scalar : launch.scalars) arguments.push_back(&scalar);
        for (size_t i = given; i < tensors.size(); ++i) arguments.push_back(&tensors[i]);
        cuda::launch_cuda_kernel(cuda::cuda_kernel(images_, name_), name_, launch.grid, program_.block(), launch.shared_bytes,
                           context.stream(), arguments.data());
    }

private:
    std::string name_;
    cuda::LaunchProgram program_;
    const cuda::CudaImages* images_;
};

}  // namespace

std::unique_ptr<Kernel> create_cuda_operator(const Node& node) { return std::make_unique<CudaOperator>(node); }

}  // namespace intaglio::ort
