// Slots of a quantised cache as rows of floats: see slots.py.
#pragma once

#include "plugins/cpu/simd_float.h"
#include "plugins/quantize_cache/kernel.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

INTAGLIO_FLOAT float slot_scale(const uint8_t* from) { return float_of(uint32_t(from[0]) << 23 | uint32_t(from[1]) << 15); }

// x: [depth] floats
INTAGLIO_FLOAT void read_8_bits(const uint8_t* slot, int64_t depth, float* x) {
    const int8_t* const codes = reinterpret_cast<const int8_t*>(slot);
    const uint8_t* scales = slot + depth;
    int64_t k = 0;
    for (; k + SLOT_GROUP <= depth; k += SLOT_GROUP, scales += 2) {
        const F32 scale = set_float(slot_scale(scales));
        for (int64_t i = k; i < k + SLOT_GROUP; i += FLOATS) {
            const F32 code = load_codes(codes + i);
            store_float(x + i, scale * (code * absolute(code)));
        }
    }
    for (; k < depth; ++k) {
        const float code = codes[k];
        x[k] = slot_scale(scales) * (code * (code < 0 ? -code : code));
    }
}

// x: [groups·32] floats, of which `depth` are a row's
INTAGLIO_FLOAT void read_4_bits(const uint8_t* slot, int64_t depth, float* x) {
    const int64_t groups = slot_groups(depth), half = SLOT_GROUP / 2;
    for (int64_t g = 0; g < groups; ++g) {
        const F32 scale = set_float(slot_scale(slot + groups * half + 2 * g));
        const F32 zero = set_float(float(int8_t(slot[groups * (half + 2) + g])));
        const uint8_t* const codes = slot + g * half;
        float* const to = x + g * SLOT_GROUP;
        for (int64_t i = 0; i < half; i += FLOATS) {
            store_float(to + i, scale * (load_halves(codes + i, 0) + zero));
            store_float(to + half + i, scale * (load_halves(codes + i, 4) + zero));
        }
    }
}

// Rows one after another; x has space for 31 floats more than they need.
static void read_slots(const uint8_t* slots, int64_t count, int64_t depth, int64_t bits, float* x) {
    const int64_t bytes = slot_bytes(depth, bits);
    if (bits == 8) {
        for (int64_t i = 0; i < count; ++i) read_8_bits(slots + i * bytes, depth, x + i * depth);
    } else {
        for (int64_t i = 0; i < count; ++i) read_4_bits(slots + i * bytes, depth, x + i * depth);
    }
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
