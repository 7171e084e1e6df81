// TensorRT's interface for plugins, as far as ours use it: from 10.3 on, and TensorRT-RTX from 1.0 on.
//
// TensorRT calls virtual functions of ours and we call its own, so what counts is their order, their arguments, and the
// layout of the structures; the names equal those of its headers (NvInferRuntime.h, NvInferPluginBase.h), so that their
// run-time type information does, too. Each interface states its kind and version, which TensorRT checks. With this file
// the library needs none of TensorRT's headers or libraries to compile.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;
using cudaStream_t = CUstream_st*;

namespace nvinfer1 {

enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3, kBF16 = 7, kINT64 = 8 };
enum class TensorFormat : int32_t { kLINEAR = 0 };
enum class APILanguage : int32_t { kCPP = 0 };
enum class TensorRTPhase : int32_t { kBUILD = 0, kRUNTIME = 1 };
enum class PluginCapabilityType : int32_t { kCORE = 0, kBUILD = 1, kRUNTIME = 2 };
enum class PluginFieldType : int32_t { kCHAR = 6, kUNKNOWN = 8 };
enum class DimensionOperation : int32_t { kSUM = 0, kPROD = 1, kSUB = 4, kEQUAL = 5, kLESS = 6, kFLOOR_DIV = 7 };

struct Dims64 {
    static constexpr int32_t MAX_DIMS = 8;
    int32_t nbDims;
    int64_t d[MAX_DIMS];
};

struct PluginTensorDesc {
    Dims64 dims;
    DataType type;
    TensorFormat format;
    float scale;
};

struct DynamicPluginTensorDesc {
    PluginTensorDesc desc;
    Dims64 min, max, opt;
};

struct PluginField {
    const char* name;
    const void* data;
    PluginFieldType type;
    int32_t length;
};

struct PluginFieldCollection {
    int32_t nbFields;
    const PluginField* fields;
};

struct InterfaceInfo {
    const char* kind;
    int32_t major, minor;
};

class ILogger {
public:
    enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
    virtual void log(Severity severity, const char* message) noexcept = 0;
    virtual ~ILogger() = default;
};

class ILoggerFinder {
public:
    virtual ILogger* findLogger() = 0;

protected:
    virtual ~ILoggerFinder() = default;
};

// --- expressions of lengths: objects of TensorRT's, each a pointer to what computes ----------------------------------

class IDimensionExpr;

namespace apiv {

class VRoot {
public:
    virtual ~VRoot() noexcept = default;
};

class VExprBuilder : public VRoot {
public:
    virtual const IDimensionExpr* constant(int64_t value) = 0;
    virtual const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& a, const IDimensionExpr& b) = 0;
};

}  // namespace apiv

class INoCopy {
protected:
    INoCopy() = default;
    virtual ~INoCopy() = default;
    INoCopy(const INoCopy&) = delete;
    INoCopy& operator=(const INoCopy&) = delete;
};

class IExprBuilder : public INoCopy {
public:
    const IDimensionExpr* constant(int64_t value) noexcept { return mImpl->constant(value); }
    const IDimensionExpr* operation(DimensionOperation op, const IDimensionExpr& a, const IDimensionExpr& b) noexcept {
        return mImpl->operation(op, a, b);
    }

protected:
    apiv::VExprBuilder* mImpl;
};

struct DimsExprs {
    int32_t nbDims;
    const IDimensionExpr* d[Dims64::MAX_DIMS];
};

// --- what a plugin is ------------------------------------------------------------------------------------------------

class IVersionedInterface {
public:
    virtual APILanguage getAPILanguage() const noexcept { return APILanguage::kCPP; }
    virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
    virtual ~IVersionedInterface() noexcept = default;
};

class IPluginResourceContext;

namespace v_1_0 {

class IPluginCapability : public IVersionedInterface {};

class IPluginV3 : public IVersionedInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
    virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept = 0;
    virtual IPluginV3* clone() noexcept = 0;
};

class IPluginV3OneCore : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
    virtual const char* getPluginName() const noexcept = 0;
    virtual const char* getPluginVersion() const noexcept = 0;
    virtual const char* getPluginNamespace() const noexcept = 0;
};

class IPluginV3OneBuild : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
    virtual int32_t configurePlugin(const DynamicPluginTensorDesc* inputs, int32_t input_count,
                                    const DynamicPluginTensorDesc* outputs, int32_t output_count) noexcept = 0;
    virtual int32_t getOutputDataTypes(DataType* outputs, int32_t output_count, const DataType* inputs,
                                       int32_t input_count) const noexcept = 0;
    virtual int32_t getOutputShapes(const DimsExprs* inputs, int32_t input_count, const DimsExprs* values, int32_t value_count,
                                    DimsExprs* outputs, int32_t output_count, IExprBuilder& expressions) noexcept = 0;
    virtual bool supportsFormatCombination(int32_t position, const DynamicPluginTensorDesc* tensors, int32_t input_count,
                                           int32_t output_count) noexcept = 0;
    virtual int32_t getNbOutputs() const noexcept = 0;
    virtual size_t getWorkspaceSize(const DynamicPluginTensorDesc*, int32_t, const DynamicPluginTensorDesc*,
                                    int32_t) const noexcept {
        return 0;
    }
    virtual int32_t getValidTactics(int32_t*, int32_t) noexcept { return 0; }
    virtual int32_t getNbTactics() noexcept { return 0; }
    virtual const char* getTimingCacheID() noexcept { return nullptr; }
    virtual int32_t getFormatCombinationLimit() noexcept { return 100; }
    virtual const char* getMetadataString() noexcept { return nullptr; }
};

class IPluginV3OneRuntime : public IPluginCapability {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
    virtual int32_t setTactic(int32_t) noexcept { return 0; }
    virtual int32_t onShapeChange(const PluginTensorDesc* inputs, int32_t input_count, const PluginTensorDesc* outputs,
                                  int32_t output_count) noexcept = 0;
    virtual int32_t enqueue(const PluginTensorDesc* input_shapes, const PluginTensorDesc* output_shapes,
                            const void* const* inputs, void* const* outputs, void* workspace,
                            cudaStream_t stream) noexcept = 0;
    virtual IPluginV3* attachToContext(IPluginResourceContext* context) noexcept = 0;
    virtual const PluginFieldCollection* getFieldsToSerialize() noexcept = 0;
};

class IPluginCreatorInterface : public IVersionedInterface {};

class IPluginCreatorV3One : public IPluginCreatorInterface {
public:
    InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual IPluginV3* createPlugin(const char* name, const PluginFieldCollection* fields, TensorRTPhase phase) noexcept = 0;
    virtual const PluginFieldCollection* getFieldNames() noexcept = 0;
    virtual const char* getPluginName() const noexcept = 0;
    virtual const char* getPluginVersion() const noexcept = 0;
    virtual const char* getPluginNamespace() const noexcept = 0;
};

}  // namespace v_1_0
}  // namespace nvinfer1
