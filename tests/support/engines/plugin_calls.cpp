// What TensorRT does with a plugin library, one C function a call, for Python: it loads the library, creates plugins from
// fields, asks them for types and shapes, serialises them, and lets them run. Lengths are numbers in its expressions.

#include <dlfcn.h>

#include <cstring>
#include <string>
#include <vector>

#include "plugins/trt/abi.h"

using namespace nvinfer1;

namespace nvinfer1 {
class IDimensionExpr : public INoCopy {
public:
    explicit IDimensionExpr(int64_t given) : value(given) {}
    int64_t value;
};
}  // namespace nvinfer1

namespace {

std::string messages;

class Log final : public ILogger {
    void log(Severity, const char* message) noexcept override { messages += std::string(message) + "\n"; }
};

class Finder final : public ILoggerFinder {
    ILogger* findLogger() override {
        static Log log;
        return &log;
    }
};

// Expressions are never freed, as those of TensorRT live while a plugin answers.
class Expressions final : public apiv::VExprBuilder {
public:
    const IDimensionExpr* constant(int64_t value) override { return new IDimensionExpr(value); }
    const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& a, const IDimensionExpr& b) override {
        switch (op) {
            case DimensionOperation::kSUM: return constant(a.value + b.value);
            case DimensionOperation::kPROD: return constant(a.value * b.value);
            case DimensionOperation::kSUB: return constant(a.value - b.value);
            case DimensionOperation::kEQUAL: return constant(a.value == b.value);
            case DimensionOperation::kLESS: return constant(a.value < b.value);
            case DimensionOperation::kFLOOR_DIV: return b.value == 0 ? nullptr : constant(a.value / b.value);
        }
        return nullptr;
    }
};

class Builder final : public IExprBuilder {
public:
    Builder() { mImpl = new Expressions(); }
};

v_1_0::IPluginV3OneBuild* build_of(v_1_0::IPluginV3* plugin) {
    return static_cast<v_1_0::IPluginV3OneBuild*>(plugin->getCapabilityInterface(PluginCapabilityType::kBUILD));
}

v_1_0::IPluginV3OneRuntime* runtime_of(v_1_0::IPluginV3* plugin) {
    return static_cast<v_1_0::IPluginV3OneRuntime*>(plugin->getCapabilityInterface(PluginCapabilityType::kRUNTIME));
}

}  // namespace

extern "C" {

// A tensor: its rank, lengths, and TensorRT's number of its type.
struct TensorOf {
    int32_t rank;
    int64_t lengths[8];
    int32_t type;
};

void* creator_of(const char* library) {
    void* const opened = dlopen(library, RTLD_NOW);
    if (opened == nullptr) return nullptr;
    static Finder finder;
    reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(opened, "setLoggerFinder"))(&finder);
    int32_t count = 0;
    using Creators = v_1_0::IPluginCreatorInterface* const*;
    const Creators creators = reinterpret_cast<Creators (*)(int32_t&)>(dlsym(opened, "getCreators"))(count);
    return count == 1 ? static_cast<v_1_0::IPluginCreatorV3One*>(creators[0]) : nullptr;
}

void take_logger(const char* library) {
    void* const opened = dlopen(library, RTLD_NOW);
    reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(opened, "setLoggerFinder"))(nullptr);
}

// What the plugins have logged since the last call.
const char* logged() {
    static std::string last;
    last.swap(messages);
    messages.clear();
    return last.c_str();
}

int32_t name_matches(v_1_0::IPluginCreatorV3One* creator, v_1_0::IPluginV3* plugin) {
    auto* const core = static_cast<v_1_0::IPluginV3OneCore*>(plugin->getCapabilityInterface(PluginCapabilityType::kCORE));
    return std::strcmp(core->getPluginName(), creator->getPluginName()) == 0 &&
           std::strcmp(core->getPluginVersion(), creator->getPluginVersion()) == 0 &&
           std::strcmp(core->getPluginNamespace(), creator->getPluginNamespace()) == 0;
}

int32_t field_names(v_1_0::IPluginCreatorV3One* creator, const PluginField** fields) {
    *fields = creator->getFieldNames()->fields;
    return creator->getFieldNames()->nbFields;
}

v_1_0::IPluginV3* create(v_1_0::IPluginCreatorV3One* creator, const PluginField* fields, int32_t count, int32_t phase) {
    const PluginFieldCollection collection{count, fields};
    return creator->createPlugin("node", &collection, TensorRTPhase(phase));
}

v_1_0::IPluginV3* attach(v_1_0::IPluginV3* plugin) { return runtime_of(plugin)->attachToContext(nullptr); }
v_1_0::IPluginV3* clone(v_1_0::IPluginV3* plugin) { return plugin->clone(); }
void destroy(v_1_0::IPluginV3* plugin) { delete plugin; }

int32_t serialised(v_1_0::IPluginV3* plugin, const PluginField** fields) {
    const PluginFieldCollection* const collection = runtime_of(plugin)->getFieldsToSerialize();
    *fields = collection->fields;
    return collection->nbFields;
}

int32_t tactics(v_1_0::IPluginV3* plugin, int32_t* found) {
    auto* const build = build_of(plugin);
    const int32_t count = build->getNbTactics();
    return count > 0 && build->getValidTactics(found, count) != 0 ? -1 : count;
}

int32_t set_tactic(v_1_0::IPluginV3* plugin, int32_t tactic) { return runtime_of(plugin)->setTactic(tactic); }

const char* timing_key(v_1_0::IPluginV3* plugin) { return build_of(plugin)->getTimingCacheID(); }

// Types and shapes of the outputs; -1 where the plugin refuses, -2 where it does not take its own types.
int32_t describe(v_1_0::IPluginV3* plugin, const TensorOf* inputs, int32_t input_count, TensorOf* outputs) {
    auto* const build = build_of(plugin);
    const int32_t output_count = build->getNbOutputs();
    std::vector<DataType> types, output_types(static_cast<size_t>(output_count));
    std::vector<DimsExprs> shapes, output_shapes(static_cast<size_t>(output_count));
    std::vector<DynamicPluginTensorDesc> all;
    for (int32_t i = 0; i < input_count; ++i) {
        types.push_back(DataType(inputs[i].type));
        DimsExprs shape{inputs[i].rank, {}};
        for (int32_t axis = 0; axis < shape.nbDims; ++axis) shape.d[axis] = new IDimensionExpr(inputs[i].lengths[axis]);
        shapes.push_back(shape);
        DynamicPluginTensorDesc tensor{};
        tensor.desc.type = types.back();
        all.push_back(tensor);
    }
    if (build->getOutputDataTypes(output_types.data(), output_count, types.data(), input_count) != 0) return -1;
    static Builder builder;
    if (build->getOutputShapes(shapes.data(), input_count, nullptr, 0, output_shapes.data(), output_count, builder) != 0) return -1;
    for (int32_t i = 0; i < output_count; ++i) {
        DynamicPluginTensorDesc tensor{};
        tensor.desc.type = output_types[size_t(i)];
        all.push_back(tensor);
    }
    for (int32_t i = 0; i < input_count + output_count; ++i) {
        if (!build->supportsFormatCombination(i, all.data(), input_count, output_count)) return -2;
        all[size_t(i)].desc.format = TensorFormat(1);
        if (build->supportsFormatCombination(i, all.data(), input_count, output_count)) return -2;
        all[size_t(i)].desc.format = TensorFormat::kLINEAR;
    }
    const DynamicPluginTensorDesc* const described = all.data();
    if (build->configurePlugin(described, input_count, described + input_count, output_count) != 0) return -1;
    for (int32_t i = 0; i < output_count; ++i) {
        outputs[i] = {output_shapes[size_t(i)].nbDims, {}, int32_t(output_types[size_t(i)])};
        for (int32_t axis = 0; axis < outputs[i].rank; ++axis) outputs[i].lengths[axis] = output_shapes[size_t(i)].d[axis]->value;
    }
    return output_count;
}

// One run: announced first, as TensorRT does when shapes change, or not.
int32_t enqueue(v_1_0::IPluginV3* plugin, int32_t announced, const TensorOf* inputs, int32_t input_count, const void* const* in,
                const TensorOf* outputs, int32_t output_count, void* const* out) {
    const auto described = [](const TensorOf* tensors, int32_t count) {
        std::vector<PluginTensorDesc> found;
        for (int32_t i = 0; i < count; ++i) {
            PluginTensorDesc tensor{{tensors[i].rank, {}}, DataType(tensors[i].type), TensorFormat::kLINEAR, 1.0f};
            std::memcpy(tensor.dims.d, tensors[i].lengths, sizeof tensors[i].lengths);
            found.push_back(tensor);
        }
        return found;
    };
    const auto given = described(inputs, input_count), made = described(outputs, output_count);
    auto* const runtime = runtime_of(plugin);
    if (announced && runtime->onShapeChange(given.data(), input_count, made.data(), output_count) != 0) return 1;
    return runtime->enqueue(given.data(), made.data(), in, out, nullptr, nullptr);
}

}  // extern "C"
