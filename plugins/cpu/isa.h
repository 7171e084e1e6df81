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

// Whether a kernel is compiled for matrix tiles: the build says so.
#if !defined(INTAGLIO_TILES)
#define INTAGLIO_TILES 0
#endif

namespace intaglio {

// A CPU that has one can also run those before it. Only products of bytes have copies for those with matrix tiles; all other
// kernels have the copy of `without_tiles`. `portabletiles` computes in plain C++ what `amx` does, for tests on any CPU.
#if INTAGLIO_ARM
enum class Isa { portable, neon, dotprod };
constexpr const char* ISA_NAMES[] = {"portable", "neon", "dotprod"};
#else
enum class Isa { portable, portabletiles, avx2, avx512, avx512vnni, avx512vbmi, amx };
constexpr const char* ISA_NAMES[] = {"portable", "portabletiles", "avx2", "avx512", "avx512vnni", "avx512vbmi", "amx"};

constexpr Isa without_tiles(Isa isa) {
    return isa == Isa::amx ? Isa::avx512vbmi : isa == Isa::portabletiles ? Isa::portable : isa;
}
#endif

}  // namespace intaglio

// INTAGLIO_DECLARE_KERNEL(RequantizeKernel, requantize_kernel), in kernel.h and outside of namespaces, declares the
// constant `requantize_kernel` in the namespace of every instruction set, and the function
// `intaglio::requantize_kernel(isa)` that picks one of them. INTAGLIO_DECLARE_TILE_KERNEL does so for a kernel.cpp that
// includes tile_unit.h, which is compiled for those with matrix tiles, too.
#define INTAGLIO_DECLARE_COPY(isa, Type, name) \
    namespace intaglio::isa { extern const Type name; }
#if INTAGLIO_X86
#define INTAGLIO_DECLARE_COPIES(Type, name)       \
    INTAGLIO_DECLARE_COPY(portable, Type, name)   \
    INTAGLIO_DECLARE_COPY(avx2, Type, name)       \
    INTAGLIO_DECLARE_COPY(avx512, Type, name)     \
    INTAGLIO_DECLARE_COPY(avx512vnni, Type, name) \
    INTAGLIO_DECLARE_COPY(avx512vbmi, Type, name)
#define INTAGLIO_CHOOSE(isa, name)                          \
    switch (without_tiles(isa)) {                           \
        case Isa::avx512vbmi: return avx512vbmi::name;      \
        case Isa::avx512vnni: return avx512vnni::name;      \
        case Isa::avx512: return avx512::name;              \
        case Isa::avx2: return avx2::name;                  \
        default: return portable::name;                     \
    }
#elif INTAGLIO_ARM
#define INTAGLIO_DECLARE_COPIES(Type, name)     \
    INTAGLIO_DECLARE_COPY(portable, Type, name) \
    INTAGLIO_DECLARE_COPY(neon, Type, name)     \
    INTAGLIO_DECLARE_COPY(dotprod, Type, name)
#define INTAGLIO_CHOOSE(isa, name)                    \
    switch (isa) {                                    \
        case Isa::dotprod: return dotprod::name;      \
        case Isa::neon: return neon::name;            \
        default: return portable::name;               \
    }
#else
#define INTAGLIO_DECLARE_COPIES(Type, name) INTAGLIO_DECLARE_COPY(portable, Type, name)
#define INTAGLIO_CHOOSE(isa, name) return portable::name;
#endif
#define INTAGLIO_DECLARE_KERNEL(Type, name)                                                                \
    INTAGLIO_DECLARE_COPIES(Type, name)                                                                    \
    namespace intaglio {                                                                                   \
    static inline const Type& name([[maybe_unused]] Isa isa) { INTAGLIO_CHOOSE(isa, name) }                \
    }
#if INTAGLIO_X86
#define INTAGLIO_DECLARE_TILE_KERNEL(Type, name)                    \
    INTAGLIO_DECLARE_COPIES(Type, name)                             \
    INTAGLIO_DECLARE_COPY(portabletiles, Type, name)                \
    INTAGLIO_DECLARE_COPY(amx, Type, name)                          \
    namespace intaglio {                                            \
    static inline const Type& name(Isa isa) {                       \
        if (isa == Isa::amx) return amx::name;                      \
        if (isa == Isa::portabletiles) return portabletiles::name;  \
        INTAGLIO_CHOOSE(isa, name)                                  \
    }                                                               \
    }
#else
#define INTAGLIO_DECLARE_TILE_KERNEL(Type, name) INTAGLIO_DECLARE_KERNEL(Type, name)
#endif
