// The ONNX Runtime library of our custom operators: their registration, and the choice of the instruction set.
//
// An operator comes in by its folder alone (docs/extending.md): build.py finds its kernel.cpp and ort_binding.cpp, and
// schemas/operators.h, which schemas.py writes from the signatures, has the table OPERATORS. The environment variable
// INTAGLIO_ISA=avx2 (one of ISA_NAMES in isa.h) makes sessions registered from then on use that copy of the kernels.

#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#include "plugins/ort/cuda_operator.h"
#include "plugins/ort/operator.h"
#include "schemas/operators.h"

#define INTAGLIO_EXPORT extern "C" __attribute__((visibility("default")))

namespace intaglio::ort {
namespace {

// --- the instruction set --------------------------------------------------------------------------------------------

#if INTAGLIO_X86
// Linux keeps tiles for the threads of a process that has asked for it, which may be refused: by kernels before 5.16, for
// stacks of signals that have no room for them, and in sandboxes.
bool may_use_tiles() {
#if defined(__linux__)
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}
#endif

// The best instruction set that this CPU and its operating system offer. CPUID itself is asked: __builtin_cpu_supports
// denies everything where it is not initialised by GCC's library, as in a library linked by Zig.
Isa find_best_isa() {
#if INTAGLIO_X86
    unsigned ignored, features, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &ignored, &ignored, &features, &ignored) || !(features & bit_OSXSAVE)) return Isa::portable;
    __get_cpuid_count(7, 0, &ignored, &ebx, &ecx, &edx);
    unsigned saved, upper;  // the registers that the operating system keeps for each thread
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
    constexpr unsigned YMM = 0x06, ZMM = 0xe6, TILES = 0x60000;
    constexpr unsigned AVX512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((saved & YMM) != YMM || !(features & bit_FMA) || !(features & bit_F16C) || !(ebx & bit_AVX2)) {
        return Isa::portable;
    }
    if ((saved & ZMM) != ZMM || (ebx & AVX512) != AVX512) return Isa::avx2;
    if (!(ecx & bit_AVX512VNNI)) return Isa::avx512;
    if (!(ecx & bit_AVX512VBMI)) return Isa::avx512vnni;
    constexpr unsigned AMX = 1u << 24 | 1u << 25;  // tiles, and their products of bytes
    return (edx & AMX) == AMX && (saved & TILES) == TILES && may_use_tiles() ? Isa::amx : Isa::avx512vbmi;
#elif INTAGLIO_ARM
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? Isa::dotprod : Isa::neon;
#else
    return Isa::portable;
#endif
}

// Asked once: sessions ask for each of their kernels, and virtual machines take long to answer.
Isa best_isa() {
    static const Isa best = find_best_isa();
    return best;
}

std::string supported_isas() {
    std::string names;
    for (int i = 0; i <= int(best_isa()); ++i) names += (i > 0 ? " " : "") + std::string(ISA_NAMES[i]);
    return names;
}

// The one that INTAGLIO_ISA asks for, else the best. Throws Error when this CPU cannot run it.
Isa choose_isa() {
    const Isa best = best_isa();
    const char* wish = std::getenv("INTAGLIO_ISA");
    if (wish == nullptr || *wish == '\0') return best;
    for (int i = 0; i <= int(best); ++i) {
        if (ISA_NAMES[i] == std::string(wish)) return Isa(i);
    }
    throw Error(std::string("INTAGLIO_ISA=") + wish + ": this CPU offers " + supported_isas() + ". Choose one of them.");
}

// Maker, family and model as CPUID gives them: "AuthenticAMD-25-17"; on AArch64 implementer and part: "aarch64-65-3340".
std::string cpu() {
#if defined(__x86_64__)
    unsigned maker[3], signature = 0, highest = 0, ignored[2];
    __get_cpuid(0, &highest, &maker[0], &maker[2], &maker[1]);
    __get_cpuid(1, &signature, &ignored[0], &ignored[1], &highest);
    const unsigned base = signature >> 8 & 15, family = base == 15 ? base + (signature >> 20 & 255) : base;
    const bool extended = base == 6 || base == 15;
    const unsigned model = (signature >> 4 & 15) | (extended ? signature >> 16 & 15 : 0) << 4;
    return std::string(reinterpret_cast<const char*>(maker), sizeof maker) + "-" + std::to_string(family) + "-" +
           std::to_string(model);
#elif defined(__aarch64__) && defined(__linux__)
    if (!(getauxval(AT_HWCAP) & HWCAP_CPUID)) return "unknown";
    uint64_t id;  // the system answers in place of the processor, which keeps it to itself
    __asm__("mrs %0, MIDR_EL1" : "=r"(id));
    return "aarch64-" + std::to_string(id >> 24 & 255) + "-" + std::to_string(id >> 4 & 4095);
#else
    return "unknown";
#endif
}

// --- registration ---------------------------------------------------------------------------------------------------

// Who runs a domain's operators.
struct Provider {
    const char* name;
    const char* domain;
    size_t host_inputs;  // the first inputs, which are in host memory wherever the others are
};
constexpr Provider CPU = {"CPUExecutionProvider", "intaglio", 0};
constexpr Provider CUDA = {"CUDAExecutionProvider", "intaglio.cuda", IMAGES};

// The operators in the form of plugins/ort/cuda_nodes.py.
const std::vector<Operator>& cuda_operators() {
    static const auto* const all = [] {
        auto* const made = new std::vector<Operator>(OPERATORS);
        for (Operator& op : *made) {
            op.inputs.insert(op.inputs.begin(), {{"cubin", {DType::uint8}, false}, {"ptx", {DType::uint8}, false}});
            op.attributes.push_back({"kernel", true, std::string(), {}});
            op.create = create_cuda_operator;
            op.select = nullptr;
            for (OutputPort& output : op.outputs) {
                output.like += output.like >= 0 ? int(IMAGES) : 0;
                output.optional = false;
            }
        }
        return made;
    }();
    return *all;
}

// One operator with one choice of its inputs' types: what ONNX Runtime takes as a kernel.
struct Registration : OrtCustomOp {
    const Operator* op;
    const Provider* provider;
    const Api* api;
    Isa isa;
    std::vector<DType> input_types;
};

const Registration& registration(const OrtCustomOp* op) { return *static_cast<const Registration*>(op); }

// A kernel with what its errors are reported with.
struct Instance {
    const Registration& registration;
    std::unique_ptr<Kernel> kernel;
};

// Runs `work`; an exception becomes the returned status.
template <typename Work>
OrtStatus* guarded(const Api& api, const std::string& context, const Work& work) {
    int code = ERROR_FAIL;
    std::string message;
    try {
        work();
        return nullptr;
    } catch (const Error& error) {
        code = ERROR_INVALID_ARGUMENT;
        message = context + ": " + error.what();
    } catch (const std::bad_alloc&) {
        message = context + ": out of memory";
    } catch (const std::exception& error) {
        message = context + ": " + error.what();
    } catch (...) {
        message = context + ": an unknown error";
    }
    return api.create_status(code, message.c_str());
}

OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
    const Registration& self = registration(op);
    return guarded(*self.api, self.op->name, [&] {
        try {
            const Node node(*self.api, info, self.isa, *self.op);
            node.check_outputs();
            *kernel = new Instance{self, self.op->create(node)};
        } catch (const Error& error) {
            throw Error("node " + self.api->node_name(info) + ": " + error.what());
        }
    });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) {  // ONNX Runtime adds the node's name to an error
    const Instance& instance = *static_cast<const Instance*>(kernel);
    const Registration& self = instance.registration;
    return guarded(*self.api, self.op->name, [&] { instance.kernel->compute(Context(*self.api, context)); });
}

// An output whose type an attribute chooses is declared as undefined, and optional: only so does ONNX Runtime take its type from the
// graph, instead of from an input. `Node::check_outputs` holds the type against the attribute that it depends on.
int output_type(const OutputPort& port, const std::vector<DType>& inputs) {
    if (port.like >= 0) return int(inputs[size_t(port.like)]);
    return int(port.attribute != nullptr ? DType::undefined : port.types[0]);
}
int output_characteristic(const OutputPort& port) { return port.optional || port.attribute != nullptr ? OPTIONAL : REQUIRED; }

Registration make_registration(const Operator& op, std::vector<DType> input_types, const Provider& provider, const Api& api,
                               Isa isa) {
    Registration result{};
    result.version = CUSTOM_OP_VERSION;
    result.GetName = [](const OrtCustomOp* op) { return registration(op).op->name; };
    result.GetExecutionProviderType = [](const OrtCustomOp* op) { return registration(op).provider->name; };
    result.GetInputType = [](const OrtCustomOp* op, size_t index) { return int(registration(op).input_types[index]); };
    result.GetInputTypeCount = [](const OrtCustomOp* op) { return registration(op).op->inputs.size(); };
    result.GetOutputType = [](const OrtCustomOp* op, size_t index) {
        return output_type(registration(op).op->outputs[index], registration(op).input_types);
    };
    result.GetOutputTypeCount = [](const OrtCustomOp* op) { return registration(op).op->outputs.size(); };
    result.KernelDestroy = [](void* kernel) { delete static_cast<Instance*>(kernel); };
    result.GetInputCharacteristic = [](const OrtCustomOp* op, size_t index) {
        return registration(op).op->inputs[index].optional ? OPTIONAL : REQUIRED;
    };
    result.GetOutputCharacteristic = [](const OrtCustomOp* op, size_t index) {
        return output_characteristic(registration(op).op->outputs[index]);
    };
    result.GetInputMemoryType = [](const OrtCustomOp* op, size_t index) {
        return index < registration(op).provider->host_inputs ? MEMORY_HOST : MEMORY_DEFAULT;
    };
    const auto none = [](const OrtCustomOp*) { return 0; };  // no variadic inputs or outputs
    result.GetVariadicInputMinArity = none;
    result.GetVariadicInputHomogeneity = none;
    result.GetVariadicOutputMinArity = none;
    result.GetVariadicOutputHomogeneity = none;
    result.CreateKernelV2 = create_kernel;
    result.KernelComputeV2 = compute;
    result.op = &op;
    result.provider = &provider;
    result.api = &api;
    result.isa = isa;
    result.input_types = std::move(input_types);
    return result;
}

// Every choice of one type for each input.
std::vector<std::vector<DType>> type_choices(const std::vector<InputPort>& ports) {
    std::vector<std::vector<DType>> choices = {{}};
    for (const InputPort& port : ports) {
        std::vector<std::vector<DType>> longer;
        for (const std::vector<DType>& choice : choices) {
            for (const DType type : port.types) {
                longer.push_back(choice);
                longer.back().push_back(type);
            }
        }
        choices = std::move(longer);
    }
    return choices;
}

// The domain of a provider with every operator, those of the CPU for one instruction set. ONNX Runtime keeps pointers into it as long as any session
// lives, so it is made once and stays.
class Domain {
public:
    Domain(const OrtApi* table, const Provider& provider, const std::vector<Operator>& operators, Isa isa) : api_(table) {
        for (const Operator& op : operators) {
            for (std::vector<DType>& types : type_choices(op.inputs)) {
                registrations_.push_back(
                    std::make_unique<Registration>(make_registration(op, std::move(types), provider, api_, isa)));
            }
        }
        domain_ = api_.create_domain(provider.domain);
        for (const auto& each : registrations_) api_.add_operator(domain_, each.get());
    }
    void add_to(OrtSessionOptions* options) const { api_.add_domain(options, domain_); }

private:
    Api api_;
    std::vector<std::unique_ptr<Registration>> registrations_;
    OrtCustomOpDomain* domain_ = nullptr;
};

const Domain& cpu_domain(const OrtApi* table, Isa isa) {
    static std::mutex mutex;
    static std::unique_ptr<Domain>* const domains = new std::unique_ptr<Domain>[std::size(ISA_NAMES)];
    const std::lock_guard<std::mutex> lock(mutex);
    std::unique_ptr<Domain>& domain = domains[int(isa)];
    if (!domain) domain = std::make_unique<Domain>(table, CPU, OPERATORS, isa);
    return *domain;
}

const Domain& cuda_domain(const OrtApi* table) {
    static const Domain* const domain = new Domain(table, CUDA, cuda_operators(), Isa::portable);
    return *domain;
}

}  // namespace
}  // namespace intaglio::ort

// Called by ONNX Runtime for each SessionOptions.register_custom_ops_library.
INTAGLIO_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
    using namespace intaglio::ort;
    if (const OrtApi* table = base->GetApi(MINIMUM_API_VERSION)) {
        return guarded(Api(table), "intaglio", [&] {
            cpu_domain(table, choose_isa()).add_to(options);
            cuda_domain(table).add_to(options);
        });
    }
    const std::string message = std::string("intaglio: ONNX Runtime ") + base->GetVersionString() +
                                " is too old, expected 1.18 or later. Install a newer one.";
    return Api(base->GetApi(1)).create_status(ERROR_FAIL, message.c_str());
}

// The name of the instruction set that a session registered now would use; null if INTAGLIO_ISA asks for another than
// this CPU offers.
INTAGLIO_EXPORT const char* intaglio_isa() {
    try {
        return intaglio::ISA_NAMES[int(intaglio::ort::choose_isa())];
    } catch (...) {
        return nullptr;
    }
}

// The instruction sets that this CPU can run, from the plainest to the best, with spaces between.
INTAGLIO_EXPORT const char* intaglio_supported_isas() {
    static const std::string names = intaglio::ort::supported_isas();
    return names.c_str();
}

// The names of the operators in the table, with spaces between.
INTAGLIO_EXPORT const char* intaglio_operators() {
    static const std::string names = [] {
        std::string text;
        for (const auto& op : intaglio::ort::OPERATORS) text += (text.empty() ? "" : " ") + std::string(op.name);
        return text;
    }();
    return names.c_str();
}

// The processor, as the tables of micro-kernels are named: maker, family, model.
INTAGLIO_EXPORT const char* intaglio_cpu() {
    static const std::string name = intaglio::ort::cpu();
    return name.c_str();
}

// Makes an operator, by its folder, of the instruction set that a session registered now would use take a micro-kernel from now on, for
// the case of its first three numbers (micro_kernel.h). 0 where there is no such micro-kernel, else 1.
INTAGLIO_EXPORT int intaglio_select_kernel(const char* operation, const int32_t (&numbers)[7]) {
    using namespace intaglio;
    const MicroKernelWish wish = {{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]}, numbers[6]};
    try {
        const Isa isa = ort::choose_isa();
        for (const ort::Operator& op : ort::OPERATORS) {
            if (std::string(op.folder) == operation && op.select != nullptr) return op.select(isa, wish);
        }
    } catch (...) {
    }
    return 0;
}
