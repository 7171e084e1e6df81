// The base of the micro-kernels of plugins/micro_kernels, and the choice among them.
#pragma once

#include <cstdint>

#include "plugins/cpu/micro_kernel.h"
#include "plugins/cpu/simd_float.h"

// Neighbours that products of bytes add up at once (ByteForms of plugins/micro_kernels/instruction_sets.py): four in 32
// bits, or two in 16, which takes weights of at most 6 bits; 0 where there are none.
#if defined(__AVX512VNNI__) || (defined(INTAGLIO_NEON) && defined(__ARM_FEATURE_DOTPROD))
#define INTAGLIO_BYTE_PRODUCTS 4
#elif (defined(__AVX2__) && !defined(__AVX512F__)) || defined(INTAGLIO_NEON)
#define INTAGLIO_BYTE_PRODUCTS 2
#else
#define INTAGLIO_BYTE_PRODUCTS 0
#endif

// Whether weights are multiplied in words of 16 bits, too (`multiply_words` of the same).
#if defined(__AVX2__) && INTAGLIO_BYTE_PRODUCTS == 2
#define INTAGLIO_WORDS 1
#else
#define INTAGLIO_WORDS 0
#endif

namespace intaglio::INTAGLIO_ISA {
namespace {

// What is added to signed bytes of a weight: those of products are unsigned on x86, signed on AArch64.
#if defined(INTAGLIO_NEON)
constexpr int BYTE_OFFSET = 0;
#else
constexpr int BYTE_OFFSET = 128;
#endif

template <typename Stretch>
struct MicroKernel {
    MicroKernelName name;
    void (*run)(const Stretch& stretch);
};

// Which micro-kernel each case takes; the first of the table for it, until another is selected. Sessions may run
// meanwhile: each sees one or the other.
template <typename Stretch, int COUNT>
class Choice {
public:
    // most_rows: of x at once, by its planes
    constexpr Choice(const MicroKernel<Stretch> (&table)[COUNT], const int* most_rows)
        : table_(table), most_rows_(most_rows) {}

    // For as many of `rows` rows of x as there is a micro-kernel for: a power of two.
    const MicroKernel<Stretch>& operator()(int bits, int planes, int64_t rows) {
        int taken = most_rows_[planes];
        while (taken > rows) taken /= 2;
        return at(bits, planes, taken);
    }

    // Whether the one that was chosen prefetches far ahead, with groups of a size.
    bool prefetches(const MicroKernelName& chosen, int64_t group_size = 1) const {
        return group_size <= __atomic_load_n(&prefetch_[chosen.bits][chosen.planes][chosen.rows], __ATOMIC_RELAXED);
    }

    // False where there is no such micro-kernel.
    bool select(const MicroKernelWish& wish) {
        const MicroKernelName& name = wish.name;
        for (const MicroKernel<Stretch>& each : table_) {
            if (__builtin_memcmp(&each.name, &name, sizeof name) != 0) continue;
            __atomic_store_n(&chosen_[name.bits][name.planes][name.rows], &each, __ATOMIC_RELAXED);
            __atomic_store_n(&prefetch_[name.bits][name.planes][name.rows], wish.prefetch, __ATOMIC_RELAXED);
            return true;
        }
        return false;
    }

private:
    const MicroKernel<Stretch>& at(int bits, int planes, int rows) {
        const MicroKernel<Stretch>* found = __atomic_load_n(&chosen_[bits][planes][rows], __ATOMIC_RELAXED);
        for (int i = 0; found == nullptr; ++i) {
            const MicroKernelName& name = table_[i].name;
            if (name.bits == bits && name.planes == planes && name.rows == rows) found = &table_[i];
        }
        return *found;
    }

    const MicroKernel<Stretch> (&table_)[COUNT];
    const int* const most_rows_;
    const MicroKernel<Stretch>* chosen_[9][4][9] = {};
    int32_t prefetch_[9][4][9] = {};
};

// --- the portable micro-kernels' substitutes for intrinsics ----------------------------------------------------------

#if !defined(__AVX2__)
using Words = uint32_t __attribute__((vector_size(16)));
INTAGLIO_FLOAT Words load_words(const void* p) {
    Words v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
INTAGLIO_FLOAT Words set_words(uint32_t x) { return Words{x, x, x, x}; }
INTAGLIO_FLOAT F32 to_float(Words signed_values) {
    using Signed = int32_t __attribute__((vector_size(16)));
    return __builtin_convertvector(reinterpret_cast<Signed>(signed_values), F32);
}
INTAGLIO_FLOAT F32 look_up(const float* table, Words index) {
    F32 v;
    for (int i = 0; i < FLOATS; ++i) v[i] = table[index[i]];
    return v;
}
#endif

// --- what products of bytes use ---------------------------------------------------------------------------------------

// Four bytes of x, as the integer that a product takes.
INTAGLIO_FLOAT int32_t four_bytes(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return four;
}

#if defined(__AVX512VNNI__)

// Keeps a value in its register: the compiler would read it from memory again with each instruction that takes it.
INTAGLIO_FLOAT void keep(__m512i& value) { asm("" : "+v"(value)); }

// `COUNT` bytes, over and over.
template <int COUNT>
INTAGLIO_FLOAT __m512i repeat(const uint8_t* p) {
    if (COUNT == 4) {
        int32_t bytes;
        __builtin_memcpy(&bytes, p, sizeof bytes);
        return _mm512_set1_epi32(bytes);
    }
    if (COUNT == 8) {
        int64_t bytes;
        __builtin_memcpy(&bytes, p, sizeof bytes);
        return _mm512_set1_epi64(bytes);
    }
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// In each byte its place, 0 to 63, moved right by `bits`.
INTAGLIO_FLOAT __m512i lane_numbers(int bits) {
    uint8_t numbers[64];
    for (int i = 0; i < 64; ++i) numbers[i] = uint8_t(i >> bits);
    return _mm512_loadu_si512(numbers);
}

// Adds the sums of the lanes of four vectors to four integers.
INTAGLIO_FLOAT void add_sums(int32_t* p, __m512i a, __m512i b, __m512i c, __m512i d) {
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
    const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    __m128i* const target = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(target, _mm_add_epi32(_mm_loadu_si128(target), sums));
}

#endif

#if INTAGLIO_WORDS

// Keeps additions in the order in which they are written: moved, they need more registers than there are.
INTAGLIO_FLOAT void keep(__m256i& value) { asm("" : "+x"(value)); }

template <int COUNT>
INTAGLIO_FLOAT __m256i repeat(const uint8_t* p) {
    if (COUNT == 4) {
        int32_t bytes;
        __builtin_memcpy(&bytes, p, sizeof bytes);
        return _mm256_set1_epi32(bytes);
    }
    if (COUNT == 8) {
        int64_t bytes;
        __builtin_memcpy(&bytes, p, sizeof bytes);
        return _mm256_set1_epi64x(bytes);
    }
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// In each byte its place, 0 to 15 twice, moved right by `bits`.
INTAGLIO_FLOAT __m256i lane_numbers(int bits) {
    uint8_t numbers[32];
    for (int i = 0; i < 32; ++i) numbers[i] = uint8_t(i % 16 >> bits);
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers));
}

// Bytes whose bits are upper ones of a float32: moved right by `shift` from the top, where the mask has ones, times the factor.
// The smallest are denormals before that.
struct FloatForm {
    int32_t shift, mask;
    float factor;
};

// Lets denormals count, which a program may have the processor take for zeros.
class IeeeDenormals {
public:
    IeeeDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~0x8040u); }
    ~IeeeDenormals() { _mm_setcsr(before_); }
    IeeeDenormals(const IeeeDenormals&) = delete;
    IeeeDenormals& operator=(const IeeeDenormals&) = delete;

private:
    const uint32_t before_;
};

struct FormVectors {
    explicit FormVectors(const void* stored) {
        FloatForm form;
        __builtin_memcpy(&form, stored, sizeof form);
        shift = _mm_cvtsi32_si128(form.shift);
        mask = _mm256_set1_epi32(form.mask);
        factor = _mm256_set1_ps(form.factor);
    }
    __m128i shift;
    __m256i mask;
    __m256 factor;
};

// The numbers that byte PLACE of each 32 bits stands for.
template <int PLACE>
INTAGLIO_FLOAT __m256 floats_of(__m256i bytes, const FormVectors& form) {
    const __m256i bits = _mm256_and_si256(_mm256_sra_epi32(_mm256_slli_epi32(bytes, 24 - 8 * PLACE), form.shift), form.mask);
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), form.factor);
}

INTAGLIO_FLOAT __m128i sums_of(__m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
    return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

// Adds the sums of the lanes of the first COUNT vectors to as many integers in two planes, STRIDE apart.
template <int STRIDE, int COUNT>
INTAGLIO_FLOAT void add_word_sums(int32_t* p, __m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i low = _mm256_set1_epi32(255);
    const __m128i planes[2] = {
        sums_of(_mm256_and_si256(a, low), _mm256_and_si256(b, low), _mm256_and_si256(c, low), _mm256_and_si256(d, low)),
        sums_of(_mm256_srai_epi32(a, 8), _mm256_srai_epi32(b, 8), _mm256_srai_epi32(c, 8), _mm256_srai_epi32(d, 8))};
    for (int plane = 0; plane < 2; ++plane, p += STRIDE) {
        alignas(16) int32_t sums[4];
        _mm_store_si128(reinterpret_cast<__m128i*>(sums), planes[plane]);
        for (int i = 0; i < COUNT; ++i) p[i] += sums[i];
    }
}

#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA

#if defined(INTAGLIO_NEON)
#include "plugins/cpu/micro_kernel_neon.h"
#endif
