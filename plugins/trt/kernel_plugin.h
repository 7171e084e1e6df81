// A node of the plugin CudaKernel: of any operator. It brings its kernel and the program of its launch.
//
// plugins/trt/kernel_nodes.py writes the nodes, and explains their fields.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/cuda/launching/driver.h"
#include "plugins/cuda/launching/launch_program.h"
#include "plugins/trt/abi.h"

namespace intaglio::trt {

constexpr char NAMESPACE[] = "intaglio";
constexpr char NAME[] = "CudaKernel";
constexpr char VERSION[] = "1";

// The fields of a node and of its part of an engine; the last one, bytes, is optional.
constexpr const char* FIELDS[] = {"operator", "kernel", "launch", "inputs", "outputs", "image_name", "image"};
constexpr const char* IMAGE = FIELDS[6];

// Writes an error of a node where the program asks for it, else to TensorRT's log or, where it gave none, to standard error.
void report(const std::string& message) noexcept;

class KernelPlugin final : public nvinfer1::v_1_0::IPluginV3,
                           public nvinfer1::v_1_0::IPluginV3OneCore,
                           public nvinfer1::v_1_0::IPluginV3OneBuild,
                           public nvinfer1::v_1_0::IPluginV3OneRuntime {
public:
    // Throws Error for fields that are no node's: an engine or a graph may come from anywhere.
    explicit KernelPlugin(const nvinfer1::PluginFieldCollection& fields);

    nvinfer1::v_1_0::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
    nvinfer1::v_1_0::IPluginV3* clone() noexcept override;

    const char* getPluginName() const noexcept override { return NAME; }
    const char* getPluginVersion() const noexcept override { return VERSION; }
    const char* getPluginNamespace() const noexcept override { return NAMESPACE; }

    int32_t configurePlugin(const nvinfer1::DynamicPluginTensorDesc* inputs, int32_t input_count,
                            const nvinfer1::DynamicPluginTensorDesc* outputs, int32_t output_count) noexcept override;
    int32_t getOutputDataTypes(nvinfer1::DataType* outputs, int32_t output_count, const nvinfer1::DataType* inputs,
                               int32_t input_count) const noexcept override;
    int32_t getOutputShapes(const nvinfer1::DimsExprs* inputs, int32_t input_count, const nvinfer1::DimsExprs* values,
                            int32_t value_count, nvinfer1::DimsExprs* outputs, int32_t output_count,
                            nvinfer1::IExprBuilder& expressions) noexcept override;
    bool supportsFormatCombination(int32_t position, const nvinfer1::DynamicPluginTensorDesc* tensors, int32_t input_count,
                                   int32_t output_count) noexcept override;
    int32_t getNbOutputs() const noexcept override { return int32_t(output_types_.size()); }
    int32_t getNbTactics() noexcept override { return programs_.size() > 1 ? int32_t(programs_.size()) : 0; }
    int32_t getValidTactics(int32_t* tactics, int32_t count) noexcept override;
    const char* getTimingCacheID() noexcept override { return identity_.c_str(); }
    const char* getMetadataString() noexcept override { return identity_.c_str(); }

    int32_t setTactic(int32_t tactic) noexcept override;
    int32_t onShapeChange(const nvinfer1::PluginTensorDesc* inputs, int32_t input_count,
                          const nvinfer1::PluginTensorDesc* outputs, int32_t output_count) noexcept override;
    int32_t enqueue(const nvinfer1::PluginTensorDesc* input_shapes, const nvinfer1::PluginTensorDesc* output_shapes,
                    const void* const* inputs, void* const* outputs, void* workspace,
                    cudaStream_t stream) noexcept override;
    nvinfer1::v_1_0::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
    const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override { return &collection_; }

private:
    struct Fields;  // the texts of a node's fields, shared by its clones
    KernelPlugin(std::shared_ptr<const Fields> fields);

    template <typename Work>
    int32_t attempt(Work work) const noexcept;
    void check_count(const char* what, int32_t found, size_t expected) const;
    void* kernel();
    const cuda::LaunchProgram& program() const { return programs_[chosen_]; }
    void prepare(const nvinfer1::PluginTensorDesc* inputs);

    std::shared_ptr<const Fields> fields_;
    std::vector<nvinfer1::DataType> input_types_, output_types_;
    std::vector<cuda::LaunchProgram> programs_;  // of the launches that the node chooses from; tactics are counted from 1
    size_t chosen_ = 0;
    std::vector<size_t> given_;  // the programs' inputs that the node has
    std::string identity_;
    std::vector<nvinfer1::PluginField> field_list_;
    nvinfer1::PluginFieldCollection collection_;
    std::vector<Shape> prepared_;  // the inputs' shapes that launch_ is for
    cuda::LaunchProgram::Launch launch_;
    void* kernel_ = nullptr;  // in the CUDA context of the first run: TensorRT's contexts belong to one
};

}  // namespace intaglio::trt
