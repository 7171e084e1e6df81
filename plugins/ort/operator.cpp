#include "plugins/ort/operator.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>
#include <stdexcept>

namespace intaglio::ort {

const char* dtype_name(DType type) {
    switch (type) {
        case DType::float32: return "float32";
        case DType::uint8: return "uint8";
        case DType::int8: return "int8";
        case DType::int16: return "int16";
        case DType::int32: return "int32";
        case DType::bfloat16: return "bfloat16";
        case DType::int64: return "int64";
        case DType::boolean: return "bool";
        case DType::float16: return "float16";
        default: return "another type";
    }
}

// --- Tensor ---------------------------------------------------------------------------------------------------------

void Tensor::check(DType expected) const {
    if (dtype != expected) {
        throw Error(std::string("a tensor of ") + dtype_name(dtype) + ", expected " + dtype_name(expected));
    }
}

static Tensor view(const Api& api, const OrtValue* value) {
    Tensor tensor;
    if (value == nullptr) return tensor;
    api.tensor_info(value, [&](DType dtype, size_t rank, const auto& dimensions) {
        tensor.dtype = dtype;
        tensor.shape.resize(rank);
        dimensions(tensor.shape.data());
    });
    tensor.data = api.data(value);
    return tensor;
}

// --- Node -----------------------------------------------------------------------------------------------------------

const Attribute& Operator::attribute(const char* wanted) const {
    for (const Attribute& each : attributes) {
        if (std::string(each.name) == wanted) return each;
    }
    throw std::logic_error(std::string("its signature has no attribute ") + wanted);
}

static std::string text_of(int64_t value) { return std::to_string(value); }
static std::string text_of(float value) { return std::to_string(value); }
static std::string text_of(const std::string& value) { return "'" + value + "'"; }

// "2, 3 or 4"
template <typename T>
static std::string text_of(const std::vector<Attribute::Value>& choices) {
    std::string text;
    for (size_t i = 0; i < choices.size(); ++i) {
        text += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + text_of(std::get<T>(choices[i]));
    }
    return text;
}

template <typename T>
T Node::attribute(const char* name) const {
    const Attribute& declared = op_.attribute(name);
    T value{};
    if (!api_.attribute(info_, name, value)) {
        if (declared.required) throw Error(std::string("attribute ") + name + " is missing");
        value = std::get<T>(declared.value);
    }
    const auto& choices = declared.choices;
    if (!choices.empty() && std::find(choices.begin(), choices.end(), Attribute::Value(value)) == choices.end()) {
        throw Error(std::string(name) + ": " + text_of(value) + ", expected " + text_of<T>(choices));
    }
    return value;
}

float Node::real(const char* name) const { return attribute<float>(name); }
int64_t Node::integer(const char* name) const { return attribute<int64_t>(name); }
std::string Node::text(const char* name) const { return attribute<std::string>(name); }

std::vector<int64_t> Node::integers(const char* name) const {
    std::vector<int64_t> values;
    if (!api_.attribute(info_, name, values)) throw Error(std::string("attribute ") + name + " is missing");
    return values;
}

Tensor Node::constant(size_t input) const {
    return input < input_count() ? view(api_, api_.constant_input(info_, input)) : Tensor();
}

void Node::check_outputs() const {
    for (size_t i = 0; i < op_.outputs.size(); ++i) {
        if (op_.outputs[i].attribute == nullptr) continue;
        const int64_t value = integer(op_.outputs[i].attribute);
        const DType declared = api_.output_type(info_, i);
        for (const auto& [choice, expected] : op_.outputs[i].choices) {
            if (choice == value && declared != expected) {
                throw Error("output " + std::to_string(i) + " is declared as " + dtype_name(declared) + ", expected " +
                            dtype_name(expected));
            }
        }
    }
}

// --- Context --------------------------------------------------------------------------------------------------------

Context::Context(const Api& api, OrtKernelContext* context)
    : api_(api), context_(context), input_count_(api.input_count(context)) {}

Tensor Context::input(size_t index) const {
    return index < input_count_ ? view(api_, api_.input(context_, index)) : Tensor();
}

Tensor Context::output(size_t index, const Shape& shape) const {
    Tensor tensor;
    OrtValue* value = api_.output(context_, index, shape.data(), shape.rank());
    if (value == nullptr) return tensor;
    tensor = view(api_, value);
    return tensor;
}

void Context::run_pieces(int64_t count, int64_t grain, Piece piece, const void* work) const {
    struct Job {
        int64_t count, grain;
        Piece piece;
        const void* work;
        std::atomic<bool> failed{false};
        std::exception_ptr error{};  // of the piece that failed first

        void run(int64_t index) {
            if (failed.load(std::memory_order_relaxed)) return;
            try {
                piece(work, index * grain, std::min(count, (index + 1) * grain));
            } catch (...) {  // ONNX Runtime's threads must not see it
                if (!failed.exchange(true)) error = std::current_exception();
            }
        }
    };
    if (count <= 0) return;
    Job job{count, std::max<int64_t>(grain, 1), piece, work};
    const int64_t pieces = (count + job.grain - 1) / job.grain;
    if (pieces == 1) {
        piece(work, 0, count);
        return;
    }
    api_.parallel_for(
        context_, [](void* argument, size_t index) { static_cast<Job*>(argument)->run(int64_t(index)); }, size_t(pieces), &job);
    if (job.failed) std::rethrow_exception(job.error);
}

// --- memory ---------------------------------------------------------------------------------------------------------

constexpr size_t ALIGNMENT = 64;  // a cache line, and the widest vector

static void* allocate(size_t bytes, size_t alignment = ALIGNMENT) {
    if (bytes > size_t(PTRDIFF_MAX) - alignment) throw std::bad_alloc();
    const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    void* data = std::aligned_alloc(alignment, rounded);
    if (data == nullptr) throw std::bad_alloc();
    return data;
}

namespace {

// The blocks that a thread keeps between two uses.
struct Pool {
    struct Block {
        void* data;
        size_t bytes;
    };
    std::vector<Block> blocks;

    ~Pool() {
        for (const Block& block : blocks) std::free(block.data);
    }
};

thread_local Pool pool;

}  // namespace

Scratch::Scratch(size_t bytes) : data_(nullptr), bytes_(bytes) {
    std::vector<Pool::Block>& blocks = pool.blocks;
    if (!blocks.empty()) {  // the last one given back: nested uses find their own again
        const Pool::Block block = blocks.back();
        blocks.pop_back();
        if (block.bytes >= bytes) {
            data_ = block.data;
            bytes_ = block.bytes;
            return;
        }
        std::free(block.data);
    }
    data_ = allocate(bytes);
}

Scratch::~Scratch() {
    try {
        pool.blocks.push_back({data_, bytes_});
    } catch (...) {
        std::free(data_);
    }
}

// Weights are read from end to end for each token: pages of 2 MiB spare the processor half of its walks for addresses,
// and its prefetching stops at the ends of pages. What does not fill such a page keeps its small ones.
Buffer::Buffer(size_t bytes) {
#if defined(__linux__)
    constexpr size_t HUGE_PAGE = size_t(1) << 21;
    if (bytes >= HUGE_PAGE) {
        data_.reset(allocate(bytes, HUGE_PAGE));
        madvise(data_.get(), bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
        return;
    }
#endif
    data_.reset(allocate(bytes));
}

void Buffer::Free::operator()(void* data) const { std::free(data); }

// --- checks ---------------------------------------------------------------------------------------------------------

void check_per_channel(const char* name, const Tensor& tensor, int64_t channels) {
    const int64_t elements = tensor.shape.elements();
    if (tensor.shape.rank() > 1 || (elements != 1 && elements != channels)) {
        throw Error(std::string(name) + ": shape " + tensor.shape.text() + ", expected [" + std::to_string(channels) +
                    "] or [1]");
    }
}

void check_shifts(const Tensor& shift) {
    const int32_t* values = shift.as<int32_t>();
    for (int64_t i = 0; i < shift.shape.elements(); ++i) {
        if (values[i] < 0 || values[i] > 62) throw Error("shift: " + std::to_string(values[i]) + ", expected 0 to 62");
    }
}

PerChannelValues::PerChannelValues(const Tensor& tensor, int64_t channels) : data_(tensor.as<int32_t>()) {
    if (tensor.shape.elements() == channels) return;
    repeated_.assign(size_t(channels), *data_);
    data_ = repeated_.data();
}

}  // namespace intaglio::ort
