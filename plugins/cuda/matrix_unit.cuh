// The matrix unit: products of 8-bit integers with 32-bit sums, and of float16 with float32 sums, by all 32 lanes of a
// warp together.
//
// Of integers one shape on every GPU, 16×32 times 32×8, with the fragments of mma.m16n8k32 (PTX ISA, "Matrix fragments for
// mma.m16n8k32"). A T4 (sm_75) has only m8n8k16: the four registers of A and the two of B are its operands, and the
// product is four of its instructions. With g = lane / 4 and t = lane % 4, four bytes to a register:
//   a[0], a[1], a[2], a[3]: rows g, g+8, g, g+8; columns 4t..4t+3, the same, and both again 16 further
//   b[0], b[1]:             column g; rows 4t..4t+3, and 16 further
//   c[0], c[1], c[2], c[3]: row g columns 2t, 2t+1; row g+8 the same
// Of float16 the shape is 16×16 times 16×8, of mma.m16n8k16, and the fragments are the same with two numbers to a register
// in the place of four bytes: columns 2t, 2t+1 and 8 further. A T4 has m16n8k8, and the product is two of those.
//
// Without CUDA the same functions exchange the fragments through the emulation.
#pragma once

#include "cuda/half.cuh"

namespace matrix_unit {

#if defined(__CUDACC__)

// c += a·b. The elements of A are int8, or uint8 where UNSIGNED_A; those of B are int8. The sums wrap around.
template <bool UNSIGNED_A = false>
__device__ __forceinline__ void multiply_accumulate(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    if (UNSIGNED_A) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#else
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        const int rows = part % 2, columns = part / 2;
        if (UNSIGNED_A) {
            asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+r"(c[2 * rows]), "+r"(c[2 * rows + 1])
                : "r"(a[part]), "r"(b[columns]));
        } else {
            asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+r"(c[2 * rows]), "+r"(c[2 * rows + 1])
                : "r"(a[part]), "r"(b[columns]));
        }
    }
#endif
}

// c += a·b of float16, the sums in float32; the matrix unit may cut a sum off instead of rounding it.
__device__ __forceinline__ void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int part = 0; part < 2; ++part)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * part]), "r"(a[2 * part + 1]), "r"(b[part]));
#endif
}

// A's fragment of a 16×32 tile in shared memory. Lane i gives the address of 16 bytes, aligned to 16: of row i % 16,
// the tile's first 16 columns for i < 16, else the last.
__device__ __forceinline__ void load_fragment(uint32_t (&a)[4], const void* row) {
    const uint32_t address = uint32_t(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address)
                 : "memory");
}

#else  // the portable twins

struct Fragments {
    int32_t c[4];
    uint32_t a[4], b[2];
};

// One instruction of the matrix unit, 8·ROWS × 16·COLUMNS times 16·COLUMNS × 8, for all lanes.
template <bool UNSIGNED_A, int ROWS, int COLUMNS>
__attribute__((no_sanitize("undefined"))) void multiply_warp(const emulation::Warp& warp) {
    int32_t a[8 * ROWS][16 * COLUMNS], b[8][16 * COLUMNS];
    for (int lane = 0; lane < emulation::LANES; ++lane) {
        const auto& in = *static_cast<const Fragments*>(warp.in[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int k = 0; k < COLUMNS; ++k) {
            for (int byte = 0; byte < 4; ++byte) {
                const int column = 16 * k + 4 * t + byte;
                b[g][column] = int8_t(in.b[k] >> (8 * byte));
                for (int row = 0; row < ROWS; ++row) {
                    const uint8_t element = uint8_t(in.a[ROWS * k + row] >> (8 * byte));
                    a[g + 8 * row][column] = UNSIGNED_A ? element : int8_t(element);
                }
            }
        }
    }
    for (int lane = 0; lane < emulation::LANES; ++lane) {
        const auto& in = *static_cast<const Fragments*>(warp.in[lane]);
        auto& out = *static_cast<Fragments*>(warp.out[lane]);
        for (int i = 0; i < 2 * ROWS; ++i) {
            const int32_t* row = a[lane / 4 + i / 2 * 8];
            const int32_t* column = b[lane % 4 * 2 + i % 2];
            uint32_t sum = in.c[i];
            for (int k = 0; k < 16 * COLUMNS; ++k) sum += uint32_t(row[k] * column[k]);
            out.c[i] = int32_t(sum);
        }
    }
}

template <bool UNSIGNED_A = false>
void multiply_accumulate(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
#if __CUDA_ARCH__ >= 800
    const Fragments in = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const auto out = emulation::warp_function<Fragments>("mma.m16n8k32", line, in, multiply_warp<UNSIGNED_A, 2, 2>);
    for (int i = 0; i < 4; ++i) c[i] = out.c[i];
#else
    for (int part = 0; part < 4; ++part) {
        int32_t* sums = c + 2 * (part % 2);
        const Fragments in = {{sums[0], sums[1]}, {a[part]}, {b[part / 2]}};
        const auto out = emulation::warp_function<Fragments>("mma.m8n8k16", line, in, multiply_warp<UNSIGNED_A, 1, 1>);
        sums[0] = out.c[0];
        sums[1] = out.c[1];
    }
#endif
}

struct HalfFragments {
    float c[4];
    uint32_t a[4], b[2];
};

// One instruction of the matrix unit on float16, 16 × 8·PARTS times 8·PARTS × 8, for all lanes.
template <int PARTS>
void multiply_half_warp(const emulation::Warp& warp) {
    float a[16][8 * PARTS], b[8][8 * PARTS];
    for (int lane = 0; lane < emulation::LANES; ++lane) {
        const auto& in = *static_cast<const HalfFragments*>(warp.in[lane]);
        for (int i = 0; i < 2 * PARTS; ++i) {
            const int column = 8 * (i % PARTS) + lane % 4 * 2 + i / PARTS;
            b[lane / 4][column] = half::to_float(uint16_t(in.b[i % PARTS] >> (16 * (i / PARTS))));
            for (int row = 0; row < 2; ++row)
                a[lane / 4 + 8 * row][column] = half::to_float(uint16_t(in.a[2 * (i % PARTS) + row] >> (16 * (i / PARTS))));
        }
    }
    for (int lane = 0; lane < emulation::LANES; ++lane) {
        const auto& in = *static_cast<const HalfFragments*>(warp.in[lane]);
        auto& out = *static_cast<HalfFragments*>(warp.out[lane]);
        for (int i = 0; i < 4; ++i) {
            out.c[i] = in.c[i];
            for (int k = 0; k < 8 * PARTS; ++k) out.c[i] += a[lane / 4 + i / 2 * 8][k] * b[lane % 4 * 2 + i % 2][k];
        }
    }
}

inline void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line = __builtin_LINE()) {
#if __CUDA_ARCH__ >= 800
    const HalfFragments in = {{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    const auto out = emulation::warp_function<HalfFragments>("mma.m16n8k16", line, in, multiply_half_warp<2>);
    for (int i = 0; i < 4; ++i) c[i] = out.c[i];
#else
    for (int part = 0; part < 2; ++part) {
        const HalfFragments in = {{c[0], c[1], c[2], c[3]}, {a[2 * part], a[2 * part + 1]}, {b[part]}};
        const auto out = emulation::warp_function<HalfFragments>("mma.m16n8k8", line, in, multiply_half_warp<1>);
        for (int i = 0; i < 4; ++i) c[i] = out.c[i];
    }
#endif
}

inline void load_fragment(uint32_t (&a)[4], const void* row, int line = __builtin_LINE()) {
    if (reinterpret_cast<uintptr_t>(row) % 16) emulation::fail("loads a fragment from a misaligned address in line %d", line);
    const auto loaded = emulation::warp_function<uint4>("ldmatrix", line, row, [](const emulation::Warp& warp) {
        for (int lane = 0; lane < emulation::LANES; ++lane) {
            uint32_t words[4];
            for (int matrix = 0; matrix < 4; ++matrix) {
                const void* from = *static_cast<const void* const*>(warp.in[8 * matrix + lane / 4]);
                memcpy(&words[matrix], static_cast<const char*>(from) + lane % 4 * 4, 4);
            }
            *static_cast<uint4*>(warp.out[lane]) = {words[0], words[1], words[2], words[3]};
        }
    });
    a[0] = loaded.x;
    a[1] = loaded.y;
    a[2] = loaded.z;
    a[3] = loaded.w;
}

#endif

// Four rows of four bytes to four columns: byte r of column c is byte c of row r.
__device__ __forceinline__ void transpose_bytes(const uint32_t (&rows)[4], uint32_t (&columns)[4]) {
    const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), low23 = __byte_perm(rows[2], rows[3], 0x5140);
    const uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362), high23 = __byte_perm(rows[2], rows[3], 0x7362);
    columns[0] = __byte_perm(low01, low23, 0x5410);
    columns[1] = __byte_perm(low01, low23, 0x7632);
    columns[2] = __byte_perm(high01, high23, 0x5410);
    columns[3] = __byte_perm(high01, high23, 0x7632);
}

}  // namespace matrix_unit
