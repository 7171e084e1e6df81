// Indices of 2 to 6 or 8 bits as the kernels keep them: in units that are unpacked vector by vector.
//
// A unit has one load of 64 bytes, or with 3, 5 and 6 bits several, and is cut into lanes: 16 words, or 64 bytes. A vector
// of indices has one in each lane. With 2, 4 and 8 bits, vector v lies at bit v·bits of the lanes. With 3 bits, each of the
// three loads has as many whole indices as fit; the two bits that are left over in each lane of all three, the first
// one's the lowest, make two more. With 5 and 6 bits, the lower four lie as indices of 4 bits do, in four or two loads, and
// the upper ones in a load after them, as indices of 1 or 2 bits. So no bit is lost, and K is filled up to whole units with
// index 0.
#pragma once

#include <stdint.h>

#include "plugins/cpu/simd_float.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int loads_of(int bits) { return bits == 5 ? 5 : bits == 3 || bits == 6 ? 3 : 1; }
constexpr int unit_bytes(int bits) { return 64 * loads_of(bits); }
constexpr int unit_indices(int bits) { return unit_bytes(bits) * 8 / bits; }

// Index k of a row that is packed as bit_packing.py packs it.
static int index_at(const uint32_t* words, int64_t k, int bits) {
    const int64_t at = k * bits;
    const int shift = int(at % 32);
    uint32_t value = words[at / 32] >> shift;
    if (shift + bits > 32) value |= words[at / 32 + 1] << (32 - shift);
    return int(value & ((1u << bits) - 1));
}

// Puts an index into lane `lane` of a unit whose lanes are LANE_BITS wide, as the vector'th of that lane.
template <typename Lane>
static void put_index(uint8_t* unit, int bits, int vector, int lane, int value) {
    constexpr int LANE_BITS = 8 * sizeof(Lane);
    Lane* const lanes = reinterpret_cast<Lane*>(unit);
    constexpr int COUNT = 64 / sizeof(Lane);  // lanes of one load
    if (bits == 5 || bits == 6) {
        constexpr int NIBBLES = LANE_BITS / 4;  // of a lane
        Lane& low = lanes[vector / NIBBLES * COUNT + lane];
        Lane& high = lanes[(loads_of(bits) - 1) * COUNT + lane];
        low = Lane(low | Lane(value & 15) << (vector % NIBBLES * 4));
        high = Lane(high | Lane(value >> 4) << (vector * (bits - 4)));
        return;
    }
    if (bits != 3) {
        lanes[lane] = Lane(lanes[lane] | Lane(value) << (vector * bits));
        return;
    }
    constexpr int WHOLE = LANE_BITS / 3;  // 2 of a byte, 10 of a word; two bits are left
    if (vector < 3 * WHOLE) {
        Lane& target = lanes[vector / WHOLE * COUNT + lane];
        target = Lane(target | Lane(value) << (vector % WHOLE * 3));
        return;
    }
    const int rest = value << (vector - 3 * WHOLE) * 3;  // one of the two, as a part of the six bits
    for (int load = 0; load < 3; ++load) {
        Lane& target = lanes[load * COUNT + lane];
        target = Lane(target | Lane(rest >> (2 * load) & 3) << (LANE_BITS - 2));
    }
}

// The index that put_index put into a unit of bytes; of 2, 3 and 4 bits.
[[maybe_unused]] static int get_index(const uint8_t* unit, int bits, int vector, int lane) {
    if (bits != 3) return unit[lane] >> (vector * bits) & ((1 << bits) - 1);
    constexpr int WHOLE = 2;
    if (vector < 3 * WHOLE) return unit[vector / WHOLE * 64 + lane] >> (vector % WHOLE * 3) & 7;
    int rest = 0;  // two indices
    for (int load = 0; load < 3; ++load) rest |= unit[load * 64 + lane] >> 6 << (2 * load);
    return rest >> (vector - 3 * WHOLE) * 3 & 7;
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
