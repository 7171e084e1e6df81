// The instruction sets that each kernel.cpp is compiled for, and how a kernel is declared for all of them.
//
// A kernel.cpp is compiled once per instruction set, with INTAGLIO_ISA naming it. What the copies share by name would
// be merged by the linker into one of them, perhaps one that this CPU cannot run; so everything a kernel defines lies
// in `namespace intaglio::INTAGLIO_ISA`, an anonymous namespace inside it, or is `static`, and kernels use no function
// or template of the C++ standard library. Each exports one constant, a struct of function pointers.
#pragma once

#if defined(__x86_64__) && !defined(INTAGLIO_PORTABLE)
#define INTAGLIO_X86 1
#else
#define INTAGLIO_X86 0
#endif
#if defined(__aarch64__) && defined(__linux__) && !defined(INTAGLIO_PORTABLE)
#define INTAGLIO_ARM 1
#else
#define INTAGLIO_ARM 0
#endif

// GCC's intrinsics want the architecture that brought dot products by name, an option that Zig's compiler does not have.
#if INTAGLIO_ARM && defined(__ARM_FEATURE_DOTPROD) && !defined(__clang__)
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

namespace intaglio {

// A CPU that has one can also run those before it.
#if INTAGLIO_ARM
enum class Isa { portable, neon, dotprod };
constexpr const char* ISA_NAMES[] = {"portable", "neon", "dotprod"};
#else
enum class Isa { portable, avx2, avx512, avx512vnni, avx512vbmi };
constexpr const char* ISA_NAMES[] = {"portable", "avx2", "avx512", "avx512vnni", "avx512vbmi"};
#endif

}  // namespace intaglio

// INTAGLIO_DECLARE_KERNEL(RequantizeKernel, requantize_kernel), in kernel.h and outside of namespaces, declares the
// constant `requantize_kernel` in the namespace of every instruction set, and the function
// `intaglio::requantize_kernel(isa)` that picks one of them.
#if INTAGLIO_X86
#define INTAGLIO_DECLARE_KERNEL(Type, name)                     \
    namespace intaglio::portable { extern const Type name; }    \
    namespace intaglio::avx2 { extern const Type name; }        \
    namespace intaglio::avx512 { extern const Type name; }      \
    namespace intaglio::avx512vnni { extern const Type name; }  \
    namespace intaglio::avx512vbmi { extern const Type name; }  \
    namespace intaglio {                                        \
    static inline const Type& name(Isa isa) {                   \
        switch (isa) {                                          \
            case Isa::avx512vbmi: return avx512vbmi::name;      \
            case Isa::avx512vnni: return avx512vnni::name;      \
            case Isa::avx512: return avx512::name;              \
            case Isa::avx2: return avx2::name;                  \
            default: return portable::name;                     \
        }                                                       \
    }                                                           \
    }
#elif INTAGLIO_ARM
#define INTAGLIO_DECLARE_KERNEL(Type, name)                   \
    namespace intaglio::portable { extern const Type name; }  \
    namespace intaglio::neon { extern const Type name; }      \
    namespace intaglio::dotprod { extern const Type name; }   \
    namespace intaglio {                                      \
    static inline const Type& name(Isa isa) {                 \
        switch (isa) {                                        \
            case Isa::dotprod: return dotprod::name;          \
            case Isa::neon: return neon::name;                \
            default: return portable::name;                   \
        }                                                     \
    }                                                         \
    }
#else
#define INTAGLIO_DECLARE_KERNEL(Type, name)                   \
    namespace intaglio::portable { extern const Type name; }  \
    namespace intaglio {                                      \
    static inline const Type& name(Isa) { return portable::name; } \
    }
#endif
