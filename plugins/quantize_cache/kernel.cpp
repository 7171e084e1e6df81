// A group of channels at a time, filled up to full vectors with its first channel, which changes neither its least nor
// its largest value.
#include "plugins/quantize_cache/kernel.h"

#include "plugins/cpu/simd_float.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int GROUP = int(SLOT_GROUP);
constexpr uint32_t NAN_SCALE = 0x7FC00000;

// Nearest integers, halves to the even one, of |x| below 2^22.
INTAGLIO_FLOAT F32 nearest(F32 x) {
    const F32 whole = set_float(12582912);  // 1.5·2^23: adding it leaves an integer in the lowest bits
    return (x + whole) - whole;
}

// A group's channels, and what its scale depends on.
struct Group {
    float x[GROUP];
    float least, greatest;
    bool finite;

    static Group read(const float* from, int64_t count) {
        Group group;
        for (int64_t i = 0; i < GROUP; ++i) group.x[i] = from[i < count ? i : 0];
        const F32 none = set_float(0);
        F32 high = load_float(group.x), low = none - high, zeros = none;  // low: the largest of -x
        for (int k = 0; k < GROUP; k += FLOATS) {
            const F32 x = load_float(group.x + k);
            high = max(high, x);
            low = max(low, none - x);
            zeros = zeros + x * none;  // no number where x is none, or infinite
        }
        group.greatest = largest(high);
        group.least = -largest(low);
        group.finite = sum(zeros) == 0;
        return group;
    }
    float magnitude() const { return greatest > -least ? greatest : -least; }
};

// The bits of a scale: `wanted` rounded to 9 bits, halves up; NaN where the group is not finite.
INTAGLIO_FLOAT uint32_t scale_of(float wanted, bool finite) {
    uint32_t bits;
    __builtin_memcpy(&bits, &wanted, sizeof bits);
    return !finite ? NAN_SCALE : bits >> 23 == 0 ? 0 : (bits + (1u << 14)) >> 15 << 15;
}
INTAGLIO_FLOAT void store_scale(uint8_t* to, uint32_t bits) {
    to[0] = uint8_t(bits >> 23);
    to[1] = uint8_t(bits >> 15);
}
INTAGLIO_FLOAT bool usable(uint32_t bits) { return bits != 0 && bits != NAN_SCALE; }
static void fill_last_word(uint8_t* slot, int64_t depth, int64_t bits) {
    for (int64_t i = used_bytes(depth, bits); i < slot_bytes(depth, bits); ++i) slot[i] = 0;
}
INTAGLIO_FLOAT int32_t limited(int32_t code) { return code < 0 ? 0 : code > 15 ? 15 : code; }

static void to_8_bits(const float* x, int64_t rows, int64_t depth, uint8_t* slots) {
    for (int64_t row = 0; row < rows; ++row, x += depth, slots += slot_bytes(depth, 8)) {
        uint8_t* scales = slots + depth;
        for (int64_t first = 0; first < depth; first += GROUP, scales += 2) {
            const int64_t count = depth - first < GROUP ? depth - first : GROUP;
            const Group group = Group::read(x + first, count);
            const uint32_t bits = scale_of(group.magnitude() / float(127 * 127), group.finite);
            store_scale(scales, bits);
            int8_t codes[GROUP] = {};
            if (usable(bits)) {
                const F32 scale = set_float(float_of(bits));
                float found[GROUP];
                for (int k = 0; k < GROUP; k += FLOATS) {
                    const F32 channel = load_float(group.x + k);
                    // At most 127.2, as the scale is rounded to 9 bits.
                    store_float(found + k, with_sign(nearest(square_root(absolute(channel) / scale)), channel));
                }
                for (int k = 0; k < GROUP; ++k) codes[k] = int8_t(found[k]);
            }
            __builtin_memcpy(slots + first, codes, uint64_t(count));
        }
        fill_last_word(slots, depth, 8);
    }
}

static void to_4_bits(const float* x, int64_t rows, int64_t depth, uint8_t* slots) {
    for (int64_t row = 0; row < rows; ++row, x += depth, slots += slot_bytes(depth, 4)) {
        const int64_t groups = slot_groups(depth);
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t first = g * GROUP, count = depth - first < GROUP ? depth - first : GROUP;
            const Group group = Group::read(x + first, count);
            const float range = (group.greatest - group.least) / 15, limit = group.magnitude() / 127;
            const float wanted = range > limit ? range : limit;
            const uint32_t bits = scale_of(wanted, group.finite && wanted - wanted == 0);
            store_scale(slots + groups * GROUP / 2 + 2 * g, bits);
            float zero = 0, codes[GROUP] = {};
            if (usable(bits)) {
                const F32 scale = set_float(float_of(bits));
                float lanes[FLOATS];
                store_float(lanes, nearest(set_float(group.least) / scale));
                zero = lanes[0] < -127 ? -127 : lanes[0] > 127 ? 127 : lanes[0];
                for (int k = 0; k < GROUP; k += FLOATS) {
                    store_float(codes + k, nearest(load_float(group.x + k) / scale) - set_float(zero));
                }
            }
            for (int i = 0; i < GROUP / 2; ++i) {
                const int32_t low = int32_t(codes[i]), high = int32_t(codes[i + GROUP / 2]);
                slots[g * GROUP / 2 + i] = uint8_t(limited(low) | limited(high) << 4);
            }
            slots[groups * (GROUP / 2 + 2) + g] = uint8_t(int8_t(zero));
        }
        fill_last_word(slots, depth, 4);
    }
}

}  // namespace

const QuantizeCacheKernel quantize_cache_kernel = {to_8_bits, to_4_bits};

}  // namespace intaglio::INTAGLIO_ISA
