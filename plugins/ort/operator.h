// The interface for bindings: tensors, a node's attributes and constants, threads and scratch memory.
//
// A binding (plugins/<operator>/ort_binding.cpp) stands between ONNX Runtime and a kernel. It checks every shape and
// reports an error in one line by throwing Error("shift: shape [3], expected [8] or [1]"); the operator's and the
// node's name come before it by themselves. It is compiled once, for any CPU: no vector code belongs here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "plugins/cpu/isa.h"
#include "plugins/cpu/micro_kernel.h"
#include "plugins/ort/ort_abi.h"
#include "plugins/shape.h"

namespace intaglio::ort {

const char* dtype_name(DType type);

template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<int8_t>() { return DType::int8; }
template <>
constexpr DType dtype_of<int32_t>() { return DType::int32; }
template <>
constexpr DType dtype_of<float>() { return DType::float32; }
template <>
constexpr DType dtype_of<uint8_t>() { return DType::uint8; }

// A view of a tensor in ONNX Runtime's memory.
struct Tensor {
    void* data = nullptr;
    DType dtype = DType::undefined;
    Shape shape;

    explicit operator bool() const { return dtype != DType::undefined; }  // false: an optional one that is not there

    // The elements; throws Error if they are not of type T.
    template <typename T>
    const T* as() const {
        check(dtype_of<T>());
        return static_cast<const T*>(data);
    }
    template <typename T>
    T* as_mutable() const {
        check(dtype_of<T>());
        return static_cast<T*>(data);
    }
    // The elements of a bool tensor, of which any but 0 is true: a file may hold other bytes than 0 and 1.
    const uint8_t* as_mask() const {
        check(DType::boolean);
        return static_cast<const uint8_t*>(data);
    }
    void check(DType expected) const;
};

class Kernel;
class Node;

// An attribute that an operator has: its default, which one that is required has no use for, and the values it may have
// (none: any).
struct Attribute {
    using Value = std::variant<int64_t, float, std::string>;

    const char* name;
    bool required;
    Value value;
    std::vector<Value> choices;
};

// One input of an operator.
struct InputPort {
    const char* name;
    std::vector<DType> types;
    bool optional;
};

// One output of an operator, and what its type depends on if it may have several: an input, or an attribute.
struct OutputPort {
    const char* name;
    std::vector<DType> types;
    bool optional;
    int like;               // the input whose type it has, or -1
    const char* attribute;  // whose values choose the type as `choices` says, or null
    std::vector<std::pair<int64_t, DType>> choices;
};

// The declaration in an operator's signature.py, as schemas.py writes it, and its ort_binding.cpp's kernel of a node.
struct Operator {
    const char* name;
    const char* folder;
    std::vector<InputPort> inputs;
    std::vector<OutputPort> outputs;
    std::vector<Attribute> attributes;
    std::unique_ptr<Kernel> (*create)(const Node& node);
    bool (*select)(Isa isa, const MicroKernelWish& wish);  // null: it has no micro-kernels to choose among

    // Throws std::logic_error for one that is not declared.
    const Attribute& attribute(const char* name) const;
};

// What one node is made from: its attributes, its constant inputs, the types of its outputs. Lives while it is made.
class Node {
public:
    Node(const Api& api, const OrtKernelInfo* info, Isa isa, const Operator& op)
        : api_(api), info_(info), isa_(isa), op_(op) {}

    Isa isa() const { return isa_; }  // which copy of the kernel to use

    // A missing attribute is its default; an Error where it is required, and for a value that is none of its choices.
    float real(const char* name) const;
    int64_t integer(const char* name) const;
    std::string text(const char* name) const;
    std::vector<int64_t> integers(const char* name) const;  // required; for attributes that no signature declares

    size_t output_count() const { return op_.outputs.size(); }
    size_t input_count() const { return api_.input_count(info_); }  // those left out at the end are not counted
    // The value of an input that is a constant of the graph, else a Tensor that is false. Copy the data that the kernel keeps.
    Tensor constant(size_t input) const;

    // Throws Error unless the graph declares each output that an attribute chooses the type of as that says.
    void check_outputs() const;

private:
    template <typename T>
    T attribute(const char* name) const;

    const Api& api_;
    const OrtKernelInfo* info_;
    Isa isa_;
    const Operator& op_;
};

// One run of a node.
class Context {
public:
    Context(const Api& api, OrtKernelContext* context);

    // False where the node leaves this optional input out.
    Tensor input(size_t index) const;
    // Allocates an output. False where the node leaves this optional output out.
    Tensor output(size_t index, const Shape& shape) const;
    void* stream() const { return api_.compute_stream(context_); }  // CUDA's, of a kernel on a GPU

    // Calls work(begin, end) on pieces of 0..count-1 on ONNX Runtime's threads, this one included, and returns when all
    // are done. A piece has `grain` items or, the last one, fewer: choose it for some 3 microseconds or more of work
    // (a piece costs about 0.1). One piece runs here without waking a thread. What `work` throws is thrown here.
    template <typename Work>
    void parallel_for(int64_t count, int64_t grain, const Work& work) const {
        run_pieces(count, grain, [](const void* argument, int64_t begin, int64_t end) {
            (*static_cast<const Work*>(argument))(begin, end);
        }, &work);
    }

private:
    using Piece = void (*)(const void* work, int64_t begin, int64_t end);
    void run_pieces(int64_t count, int64_t grain, Piece piece, const void* work) const;

    const Api& api_;
    OrtKernelContext* context_;
    size_t input_count_;
};

// Memory for one call or one piece of parallel work, aligned to 64 bytes, its contents undefined. Each thread keeps
// what it once had for its next Scratch, so that a node allocates in its first run only. Does not outlive its block.
class Scratch {
public:
    explicit Scratch(size_t bytes);
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    template <typename T>
    T* as() const { return static_cast<T*>(data_); }

private:
    void* data_;
    size_t bytes_;
};

// Memory aligned to 64 bytes that a kernel keeps, such as its packed weight.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(size_t bytes);

    explicit operator bool() const { return data_ != nullptr; }
    template <typename T>
    T* as() const { return static_cast<T*>(data_.get()); }

private:
    struct Free {
        void operator()(void* data) const;
    };
    std::unique_ptr<void, Free> data_;
};

// A node's kernel. `compute` runs on several threads at once, for several requests: it must not change the object.
class Kernel {
public:
    virtual ~Kernel() = default;
    virtual void compute(const Context& context) const = 0;
};

// --- checks that several bindings need ------------------------------------------------------------------------------

// Throws Error unless `tensor`, of any rank, has one element or `channels`.
void check_per_channel(const char* name, const Tensor& tensor, int64_t channels);

// Throws Error unless every element is in 0..62.
void check_shifts(const Tensor& shift);

// The elements of a [channels] or [1] int32 tensor, repeated to [channels] where there is one for all. It may point into
// the tensor: keep a std::vector of it where the tensor does not stay.
class PerChannelValues {
public:
    PerChannelValues(const Tensor& tensor, int64_t channels);
    const int32_t* data() const { return data_; }

private:
    std::vector<int32_t> repeated_;
    const int32_t* data_;
};

}  // namespace intaglio::ort
