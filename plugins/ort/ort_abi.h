// The facts of ONNX Runtime's stable C ABI that the library builds on, and thin typed wrappers of them.
//
// The ABI is append-only: a function keeps its index in the table `OrtApi`, and a struct its first fields, for ever.
// So the library needs no header of ONNX Runtime, and one build of it serves every version from MINIMUM_API_VERSION on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/error.h"

extern "C" {
struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtApi;

struct OrtApiBase {
    const OrtApi* (*GetApi)(uint32_t version);
    const char* (*GetVersionString)();
};

// How ONNX Runtime sees an operator: the fields of version 16, the first whose kernels return a status.
struct OrtCustomOp {
    uint32_t version;
    void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);  // not called: V2 below
    const char* (*GetName)(const OrtCustomOp*);
    const char* (*GetExecutionProviderType)(const OrtCustomOp*);
    int (*GetInputType)(const OrtCustomOp*, size_t index);
    size_t (*GetInputTypeCount)(const OrtCustomOp*);
    int (*GetOutputType)(const OrtCustomOp*, size_t index);
    size_t (*GetOutputTypeCount)(const OrtCustomOp*);
    void (*KernelCompute)(void* kernel, OrtKernelContext*);  // not called: V2 below
    void (*KernelDestroy)(void* kernel);
    int (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
    int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
    int (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
    int (*GetVariadicInputMinArity)(const OrtCustomOp*);
    int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
    int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
    int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
    OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
    OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
    OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
};
}

namespace intaglio::ort {

constexpr uint32_t MINIMUM_API_VERSION = 18;  // ONNX Runtime 1.18: the first to have every function below
constexpr uint32_t CUSTOM_OP_VERSION = 16;    // of the struct OrtCustomOp above

constexpr int ERROR_FAIL = 1;              // OrtErrorCode
constexpr int ERROR_INVALID_ARGUMENT = 2;  // OrtErrorCode
constexpr int REQUIRED = 0;                // OrtCustomOpInputOutputCharacteristic
constexpr int OPTIONAL = 1;                // OrtCustomOpInputOutputCharacteristic
constexpr int MEMORY_DEFAULT = 0;          // OrtMemType: the provider's own
constexpr int MEMORY_HOST = -2;            // OrtMemType: of an input, in host memory

// ONNXTensorElementDataType, of the element types that our operators use.
enum class DType : int { undefined = 0, float32 = 1, uint8 = 2, int8 = 3, int16 = 5, int32 = 6, int64 = 7, boolean = 9, float16 = 10, bfloat16 = 16 };

// ONNX Runtime's function table. Each member checks the status that it gets, and throws it as an Error.
class Api {
public:
    explicit Api(const OrtApi* table) : functions_(reinterpret_cast<void* const*>(table)) {}

    OrtStatus* create_status(int code, const char* message) const {
        return function<OrtStatus*(int, const char*)>(0)(code, message);
    }

    OrtCustomOpDomain* create_domain(const char* name) const {
        OrtCustomOpDomain* domain = nullptr;
        call<const char*, OrtCustomOpDomain**>(26, name, &domain);
        return domain;
    }
    void add_operator(OrtCustomOpDomain* domain, const OrtCustomOp* op) const {
        call<OrtCustomOpDomain*, const OrtCustomOp*>(27, domain, op);
    }
    void add_domain(OrtSessionOptions* options, OrtCustomOpDomain* domain) const {
        call<OrtSessionOptions*, OrtCustomOpDomain*>(28, options, domain);
    }
    void release_domain(OrtCustomOpDomain* domain) const { function<void(OrtCustomOpDomain*)>(101)(domain); }

    void* data(const OrtValue* value) const {
        void* data = nullptr;
        call<OrtValue*, void**>(51, const_cast<OrtValue*>(value), &data);
        return data;
    }
    // Calls visit(element type, dimensions, rank), where `dimensions` is a function that fills an array of int64.
    template <typename Visit>
    void tensor_info(const OrtValue* value, Visit visit) const {
        OrtTensorTypeAndShapeInfo* info = nullptr;
        call<const OrtValue*, OrtTensorTypeAndShapeInfo**>(65, value, &info);
        const Releaser<OrtTensorTypeAndShapeInfo> releaser{function<void(OrtTensorTypeAndShapeInfo*)>(99), info};
        int type = 0;
        size_t rank = 0;
        call<const OrtTensorTypeAndShapeInfo*, int*>(60, info, &type);
        call<const OrtTensorTypeAndShapeInfo*, size_t*>(61, info, &rank);
        visit(DType(type), rank, [&](int64_t* dimensions) {
            call<const OrtTensorTypeAndShapeInfo*, int64_t*, size_t>(62, info, dimensions, rank);
        });
    }

    // False when the node has no such attribute.
    bool attribute(const OrtKernelInfo* info, const char* name, float& value) const {
        return attempt<const OrtKernelInfo*, const char*, float*>(85, info, name, &value);
    }
    bool attribute(const OrtKernelInfo* info, const char* name, int64_t& value) const {
        return attempt<const OrtKernelInfo*, const char*, int64_t*>(86, info, name, &value);
    }
    bool attribute(const OrtKernelInfo* info, const char* name, std::string& value) const {
        size_t size = 0;  // with the terminating zero
        if (!attempt<const OrtKernelInfo*, const char*, char*, size_t*>(87, info, name, nullptr, &size)) return false;
        std::vector<char> text(size);
        call<const OrtKernelInfo*, const char*, char*, size_t*>(87, info, name, text.data(), &size);
        value.assign(text.data());
        return true;
    }
    bool attribute(const OrtKernelInfo* info, const char* name, std::vector<int64_t>& values) const {
        size_t count = 0;
        if (!attempt<const OrtKernelInfo*, const char*, int64_t*, size_t*>(163, info, name, nullptr, &count)) return false;
        values.resize(count);
        call<const OrtKernelInfo*, const char*, int64_t*, size_t*>(163, info, name, values.data(), &count);
        return true;
    }
    std::string node_name(const OrtKernelInfo* info) const {
        size_t size = 0;
        attempt<const OrtKernelInfo*, char*, size_t*>(244, info, nullptr, &size);
        std::vector<char> text(size + 1);
        call<const OrtKernelInfo*, char*, size_t*>(244, info, text.data(), &size);
        return text.data();
    }
    size_t input_count(const OrtKernelInfo* info) const {
        size_t count = 0;
        call<const OrtKernelInfo*, size_t*>(230, info, &count);
        return count;
    }
    DType output_type(const OrtKernelInfo* info, size_t index) const {
        OrtTypeInfo* type_info = nullptr;
        call<const OrtKernelInfo*, size_t, OrtTypeInfo**>(235, info, index, &type_info);
        const Releaser<OrtTypeInfo> releaser{function<void(OrtTypeInfo*)>(98), type_info};
        const OrtTensorTypeAndShapeInfo* tensor = nullptr;  // part of type_info
        call<const OrtTypeInfo*, const OrtTensorTypeAndShapeInfo**>(55, type_info, &tensor);
        int type = 0;
        if (tensor != nullptr) call<const OrtTensorTypeAndShapeInfo*, int*>(60, tensor, &type);
        return DType(type);
    }
    // Null when the input is no constant of the graph.
    const OrtValue* constant_input(const OrtKernelInfo* info, size_t index) const {
        int is_constant = 0;
        const OrtValue* value = nullptr;
        call<const OrtKernelInfo*, size_t, int*, const OrtValue**>(249, info, index, &is_constant, &value);
        return is_constant != 0 ? value : nullptr;
    }

    size_t input_count(const OrtKernelContext* context) const {
        size_t count = 0;
        call<const OrtKernelContext*, size_t*>(88, context, &count);
        return count;
    }
    // Null when the node leaves this optional input out.
    const OrtValue* input(const OrtKernelContext* context, size_t index) const {
        const OrtValue* value = nullptr;
        call<const OrtKernelContext*, size_t, const OrtValue**>(90, context, index, &value);
        return value;
    }
    // Null when nothing reads this optional output.
    OrtValue* output(OrtKernelContext* context, size_t index, const int64_t* dimensions, size_t rank) const {
        OrtValue* value = nullptr;
        call<OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**>(91, context, index, dimensions, rank, &value);
        return value;
    }
    // CUDA's stream of a node on the CUDA provider; null elsewhere.
    void* compute_stream(const OrtKernelContext* context) const {
        void* stream = nullptr;
        call<const OrtKernelContext*, void**>(193, context, &stream);
        return stream;
    }
    // Runs function(argument, i) for every i in 0..count-1 on the session's worker threads and this one.
    void parallel_for(const OrtKernelContext* context, void (*run)(void*, size_t), size_t count, void* argument) const {
        call<const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*>(274, context, run, count, 0, argument);
    }

private:
    template <typename T>
    struct Releaser {
        void (*release)(T*);
        T* object;
        ~Releaser() { release(object); }
    };

    template <typename Signature>
    Signature* function(size_t index) const {
        return reinterpret_cast<Signature*>(functions_[index]);
    }
    template <typename... Arguments>
    void call(size_t index, Arguments... arguments) const {
        OrtStatus* status = function<OrtStatus*(Arguments...)>(index)(arguments...);
        if (status == nullptr) return;
        const std::string message = function<const char*(const OrtStatus*)>(2)(status);
        function<void(OrtStatus*)>(93)(status);
        throw Error(message);
    }
    template <typename... Arguments>
    bool attempt(size_t index, Arguments... arguments) const {
        OrtStatus* status = function<OrtStatus*(Arguments...)>(index)(arguments...);
        if (status != nullptr) function<void(OrtStatus*)>(93)(status);
        return status == nullptr;
    }

    void* const* functions_;
};

}  // namespace intaglio::ort
