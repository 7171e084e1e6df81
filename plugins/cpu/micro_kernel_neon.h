// What the micro-kernels use on AArch64 beside the portable functions of micro_kernel_choice.h: look-ups within registers,
// and products of bytes.
#pragma once

#include <arm_neon.h>

namespace intaglio::INTAGLIO_ISA {
namespace {

// --- tables of 16 float32 ---------------------------------------------------------------------------------------------

using FloatTable = uint8x16x4_t;
INTAGLIO_FLOAT FloatTable load_table(const float* p) { return vld1q_u8_x4(reinterpret_cast<const uint8_t*>(p)); }
// index: 0 to 15 in each word
INTAGLIO_FLOAT F32 look_up(const FloatTable& table, Words index) {
    const Words bytes = index * set_words(0x04040404) + set_words(0x03020100);  // of each float32 in the table
    return F32(vqtbl4q_u8(table, uint8x16_t(bytes)));
}

// --- products of bytes ------------------------------------------------------------------------------------------------

INTAGLIO_FLOAT Words set_bytes(int byte) { return set_words(0x01010101u * uint32_t(byte)); }

#if defined(__ARM_FEATURE_DOTPROD)
INTAGLIO_FLOAT Words add_products(Words sums, Words weights, Words x) {
    return Words(vdotq_s32(int32x4_t(sums), int8x16_t(weights), int8x16_t(x)));
}
INTAGLIO_FLOAT int32_t sum_words(Words v) { return vaddvq_s32(int32x4_t(v)); }
INTAGLIO_FLOAT Words look_up_bytes(Words table, Words index) { return Words(vqtbl1q_u8(uint8x16_t(table), uint8x16_t(index))); }

// `COUNT` bytes, over and over.
template <int COUNT>
INTAGLIO_FLOAT Words repeat(const uint8_t* p) {
    uint8_t bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = p[i % COUNT];
    return load_words(bytes);
}

// In each byte its place, 0 to 15, moved right by `bits`.
INTAGLIO_FLOAT Words lane_numbers(int bits) {
    uint8_t numbers[16];
    for (int i = 0; i < 16; ++i) numbers[i] = uint8_t(i >> bits);
    return load_words(numbers);
}

INTAGLIO_FLOAT void keep(Words&) {}  // no instruction reads its operands from memory

// Adds the sums of the lanes of four vectors to four integers.
INTAGLIO_FLOAT void add_sums(int32_t* p, Words a, Words b, Words c, Words d) {
    const int32x4_t ab = vpaddq_s32(int32x4_t(a), int32x4_t(b)), cd = vpaddq_s32(int32x4_t(c), int32x4_t(d));
    vst1q_s32(p, vaddq_s32(vld1q_s32(p), vpaddq_s32(ab, cd)));
}
#else
INTAGLIO_FLOAT int16x8_t multiply_pairs(Words weights, Words x) {
    const int8x16_t w = int8x16_t(weights), v = int8x16_t(x);
    return vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(v)), vmull_high_s8(w, v));
}
INTAGLIO_FLOAT Words widen_add(Words sums, int16x8_t pairs) { return Words(vpadalq_s16(int32x4_t(sums), pairs)); }
#endif

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
