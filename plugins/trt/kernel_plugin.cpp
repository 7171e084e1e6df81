#include "plugins/trt/kernel_plugin.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace intaglio::trt {

using namespace nvinfer1;
using cuda::Step;

namespace {

DataType data_type(const std::string& name) {
    if (name == "float32") return DataType::kFLOAT;
    if (name == "float16") return DataType::kHALF;
    if (name == "int8") return DataType::kINT8;
    if (name == "int32") return DataType::kINT32;
    if (name == "int64") return DataType::kINT64;
    throw Error("type " + name + ", expected float32, float16, int8, int32 or int64. Build it again.");
}

std::vector<DataType> data_types(const std::string& names) {
    std::vector<DataType> types;
    std::istringstream words(names);
    for (std::string name; words >> name;) types.push_back(data_type(name));
    return types;
}

std::vector<int64_t> numbers(const std::string& text) {
    std::vector<int64_t> found;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        char* end = nullptr;
        errno = 0;
        found.push_back(std::strtoll(word.c_str(), &end, 10));
        if (errno != 0 || *end != '\0') throw Error("launch: " + word + ", expected a number of 64 bits. Build it again.");
    }
    return found;
}

// Those of all launches, which differ in the blocks that they make, and in nothing that TensorRT sees.
std::vector<cuda::LaunchProgram> programs(const std::string& text, size_t outputs) {
    std::vector<cuda::LaunchProgram> found;
    std::istringstream launches(text);
    for (std::string launch; std::getline(launches, launch, '|');) {
        found.emplace_back(numbers(launch), outputs);
        const bool same = found.back().ranks() == found[0].ranks() && found.back().output_ranks() == found[0].output_ranks();
        if (!same) throw Error("launch: alternatives for other inputs or outputs. Build it again.");
    }
    if (found.empty()) throw Error("launch: nothing, expected numbers. Build it again.");
    return found;
}

// Images by name, of every node that brought one: the other nodes of its operator have the name alone. They stay until
// the process ends, as the modules that are loaded from them do.
std::mutex mutex;
std::map<std::string, const cuda::CudaImages*>& all_images() {
    static auto* const all = new std::map<std::string, const cuda::CudaImages*>();
    return *all;
}

// Lengths that TensorRT computes.
struct Expressions {
    IExprBuilder& builder;
    const std::vector<const DimsExprs*>& inputs;

    const IDimensionExpr* number(int64_t value) const { return builder.constant(value); }
    const IDimensionExpr* length(size_t input, int axis) const { return inputs[input]->d[axis]; }
    const IDimensionExpr* combine(Step step, const IDimensionExpr* a, const IDimensionExpr* b) const {
        static const std::map<Step, DimensionOperation> operations = {
            {Step::ADD, DimensionOperation::kSUM},         {Step::SUBTRACT, DimensionOperation::kSUB},
            {Step::MULTIPLY, DimensionOperation::kPROD},   {Step::DIVIDE, DimensionOperation::kFLOOR_DIV},
            {Step::EQUAL, DimensionOperation::kEQUAL},     {Step::LESS, DimensionOperation::kLESS},
        };
        return builder.operation(operations.at(step), *a, *b);
    }
    void require(Step, size_t, int, const IDimensionExpr*) const {}  // once lengths are known, in each launch
};

Shape shape_of(const PluginTensorDesc& tensor) {
    Shape shape;
    if (tensor.dims.nbDims < 0) throw Error("an input whose number of axes is not known");
    shape.resize(size_t(tensor.dims.nbDims));
    for (int axis = 0; axis < tensor.dims.nbDims; ++axis) shape.set_axis(axis, tensor.dims.d[axis]);
    return shape;
}

}  // namespace

struct KernelPlugin::Fields {
    std::map<std::string, std::string> contents;

    explicit Fields(const PluginFieldCollection& given) {
        for (int32_t i = 0; i < given.nbFields; ++i) {
            const PluginField& field = given.fields[i];
            const bool known = std::find(std::begin(FIELDS), std::end(FIELDS), std::string(field.name)) != std::end(FIELDS);
            if (known && field.data != nullptr && field.length > 0) contents[field.name] = content(field);
        }
        for (const char* name : FIELDS) {
            if (name != IMAGE && contents.count(name) == 0) throw Error(std::string("no field ") + name + ". Build it again.");
        }
    }
    const std::string& operator[](const std::string& name) const { return contents.at(name); }
    bool has_image() const { return contents.count(IMAGE) > 0; }

private:
    static std::string content(const PluginField& field) {
        std::string bytes(static_cast<const char*>(field.data), size_t(field.length));
        if (field.name != std::string(IMAGE)) bytes.resize(std::strlen(bytes.c_str()));  // a zero may end a text
        return bytes;
    }
};

KernelPlugin::KernelPlugin(const PluginFieldCollection& fields) : KernelPlugin(std::make_shared<const Fields>(fields)) {
    if (!fields_->has_image()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    all_images()[(*fields_)["image_name"]] = cuda::shared_images({(*fields_)[IMAGE], ""});
}

KernelPlugin::KernelPlugin(std::shared_ptr<const Fields> fields)
    : fields_(std::move(fields)),
      input_types_(data_types((*fields_)["inputs"])),
      output_types_(data_types((*fields_)["outputs"])),
      programs_(programs((*fields_)["launch"], output_types_.size())) {
    for (size_t i = 0; i < program().inputs(); ++i) {
        if (program().ranks()[i] >= 0) given_.push_back(i);
    }
    if (given_.size() != input_types_.size() || given_.empty()) throw Error("launch: not for as many inputs as the node has. Build it again.");
    for (const auto& [name, content] : fields_->contents) {
        const auto type = name == IMAGE ? PluginFieldType::kUNKNOWN : PluginFieldType::kCHAR;
        field_list_.push_back({name.c_str(), content.data(), type, int32_t(content.size())});
        if (name != IMAGE) identity_ += name + ": " + content + "; ";
    }
    collection_ = {int32_t(field_list_.size()), field_list_.data()};
}

template <typename Work>
int32_t KernelPlugin::attempt(Work work) const noexcept {
    try {
        work();
        return 0;
    } catch (const std::exception& error) {
        report((*fields_)["operator"] + " (" + (*fields_)["kernel"] + "): " + error.what());
        return 1;
    }
}

v_1_0::IPluginCapability* KernelPlugin::getCapabilityInterface(PluginCapabilityType type) noexcept {
    switch (type) {
        case PluginCapabilityType::kCORE: return static_cast<v_1_0::IPluginV3OneCore*>(this);
        case PluginCapabilityType::kBUILD: return static_cast<v_1_0::IPluginV3OneBuild*>(this);
        case PluginCapabilityType::kRUNTIME: return static_cast<v_1_0::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
}

v_1_0::IPluginV3* KernelPlugin::clone() noexcept {
    KernelPlugin* copy = nullptr;
    attempt([&] {
        copy = new KernelPlugin(fields_);
        copy->chosen_ = chosen_;
    });
    return copy;
}

int32_t KernelPlugin::configurePlugin(const DynamicPluginTensorDesc*, int32_t input_count, const DynamicPluginTensorDesc*,
                                      int32_t output_count) noexcept {
    return attempt([&] {
        check_count("inputs", input_count, input_types_.size());
        check_count("outputs", output_count, output_types_.size());
    });
}

int32_t KernelPlugin::getOutputDataTypes(DataType* outputs, int32_t output_count, const DataType* inputs,
                                         int32_t input_count) const noexcept {
    return attempt([&] {
        check_count("inputs", input_count, input_types_.size());
        check_count("outputs", output_count, output_types_.size());
        for (size_t i = 0; i < input_types_.size(); ++i) {
            if (inputs[i] != input_types_[i]) {
                throw Error("input " + std::to_string(i) + ": TensorRT's type " + std::to_string(int(inputs[i])) +
                            ", expected " + std::to_string(int(input_types_[i])));
            }
        }
        std::copy(output_types_.begin(), output_types_.end(), outputs);
    });
}

int32_t KernelPlugin::getOutputShapes(const DimsExprs* inputs, int32_t input_count, const DimsExprs*, int32_t,
                                      DimsExprs* outputs, int32_t output_count, IExprBuilder& expressions) noexcept {
    return attempt([&] {
        check_count("inputs", input_count, input_types_.size());
        check_count("outputs", output_count, output_types_.size());
        std::vector<const DimsExprs*> placed(program().inputs());
        for (size_t i = 0; i < given_.size(); ++i) {
            check_count("axes of an input", inputs[i].nbDims, size_t(program().ranks()[given_[i]]));
            placed[given_[i]] = &inputs[i];
        }
        const auto lengths = program().output_lengths<const IDimensionExpr*>(Expressions{expressions, placed});
        auto next = lengths.begin();
        for (size_t i = 0; i < output_types_.size(); ++i) {
            outputs[i].nbDims = int32_t(program().output_ranks()[i]);
            for (int32_t axis = 0; axis < outputs[i].nbDims; ++axis) outputs[i].d[axis] = *next++;
        }
    });
}

bool KernelPlugin::supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors, int32_t input_count,
                                             int32_t output_count) noexcept {
    if (size_t(input_count) != input_types_.size() || size_t(output_count) != output_types_.size()) return false;
    const PluginTensorDesc& tensor = tensors[position].desc;
    const DataType type = position < input_count ? input_types_[size_t(position)] : output_types_[size_t(position - input_count)];
    return tensor.format == TensorFormat::kLINEAR && tensor.type == type;
}

int32_t KernelPlugin::getValidTactics(int32_t* tactics, int32_t count) noexcept {
    return attempt([&] {
        check_count("tactics", count, size_t(getNbTactics()));
        for (int32_t i = 0; i < count; ++i) tactics[i] = i + 1;
    });
}

// 0 is TensorRT's name for the plugin's default.
int32_t KernelPlugin::setTactic(int32_t tactic) noexcept {
    return attempt([&] {
        if (tactic < 0 || size_t(tactic) > programs_.size()) throw Error("tactic " + std::to_string(tactic) + ": there is none. Build it again.");
        const size_t chosen = tactic == 0 ? 0 : size_t(tactic) - 1;
        if (chosen != chosen_) prepared_.clear();
        chosen_ = chosen;
    });
}

int32_t KernelPlugin::onShapeChange(const PluginTensorDesc* inputs, int32_t input_count, const PluginTensorDesc*,
                                    int32_t) noexcept {
    return attempt([&] {
        check_count("inputs", input_count, input_types_.size());
        prepare(inputs);
    });
}

int32_t KernelPlugin::enqueue(const PluginTensorDesc* input_shapes, const PluginTensorDesc*, const void* const* inputs,
                              void* const* outputs, void*, cudaStream_t stream) noexcept {
    return attempt([&] {
        prepare(input_shapes);
        bool empty = true;
        for (const Shape& output : launch_.outputs) empty = empty && output.elements() == 0;
        if (empty) return;
        std::vector<const void*> arguments;  // pointers to inputs, scalars, outputs
        for (size_t i = 0; i < input_types_.size(); ++i) arguments.push_back(&inputs[i]);
        for (const int32_t& scalar : launch_.scalars) arguments.push_back(&scalar);
        for (size_t i = 0; i < output_types_.size(); ++i) arguments.push_back(&outputs[i]);
        cuda::launch_cuda_kernel(kernel(), (*fields_)["kernel"], launch_.grid, program().block(), launch_.shared_bytes, stream,
                                 const_cast<void**>(arguments.data()));
    });
}

v_1_0::IPluginV3* KernelPlugin::attachToContext(IPluginResourceContext*) noexcept {
    v_1_0::IPluginV3* const copy = clone();
    const auto load = [&] {
        if (cuda::has_cuda_context()) static_cast<KernelPlugin*>(copy)->kernel();
    };
    // Errors now, and no module is loaded while a graph is captured.
    if (copy == nullptr || attempt(load) == 0) return copy;
    delete copy;
    return nullptr;
}

void KernelPlugin::check_count(const char* what, int32_t found, size_t expected) const {
    if (size_t(found) == expected) return;
    throw Error(std::string(what) + ": got " + std::to_string(found) + ", expected " + std::to_string(expected) + ". Build it again.");
}

void* KernelPlugin::kernel() {
    if (kernel_ != nullptr) return kernel_;
    const std::string& name = (*fields_)["image_name"];
    const cuda::CudaImages* images = nullptr;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        const auto found = all_images().find(name);
        if (found != all_images().end()) images = found->second;
    }
    if (images == nullptr) throw Error("no node of the engine brought the image " + name + ". Build it again.");
    return kernel_ = cuda::cuda_kernel(images, (*fields_)["kernel"]);
}

// The launch for inputs of these shapes; the last one's stays.
void KernelPlugin::prepare(const PluginTensorDesc* inputs) {
    std::vector<Shape> shapes(program().inputs());
    std::vector<const Shape*> placed(program().inputs());
    for (size_t i = 0; i < given_.size(); ++i) {
        shapes[given_[i]] = shape_of(inputs[i]);
        placed[given_[i]] = &shapes[given_[i]];
    }
    if (shapes == prepared_) return;
    launch_ = program().evaluate(placed);
    prepared_ = std::move(shapes);
}

}  // namespace intaglio::trt
