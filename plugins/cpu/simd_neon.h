// The vectors of simd.h in NEON: two registers of 128 bits, 8 lanes of 32 bits.
#pragma once

#include <arm_neon.h>

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int LANES = 8;

struct I32 { int32x4_t v[2]; };
struct I16 { int16x8_t v[2]; };
struct I8 { int8x16_t v[2]; };
struct Mask32 { uint32x4_t v[2]; };
struct Mask16 { uint16x8_t v[2]; };
struct Wide { int64x2_t v[4]; };
struct Sum64 { int64x2_t v; };

// Both registers of a result, each from its number.
template <typename Vector, typename Function>
INTAGLIO_SIMD Vector both(Function function) { return {{function(0), function(1)}}; }
template <typename Function>
INTAGLIO_SIMD Wide four(Function function) { return {{function(0), function(1), function(2), function(3)}}; }

INTAGLIO_SIMD uint32x4_t bits(int32x4_t v) { return vreinterpretq_u32_s32(v); }
INTAGLIO_SIMD uint16x8_t bits(int16x8_t v) { return vreinterpretq_u16_s16(v); }
INTAGLIO_SIMD int32x4_t as_signed(uint32x4_t v) { return vreinterpretq_s32_u32(v); }
INTAGLIO_SIMD int16x8_t as_signed(uint16x8_t v) { return vreinterpretq_s16_u16(v); }

// --- memory ---------------------------------------------------------------------------------------------------------

INTAGLIO_SIMD I32 set32(int32_t x) { return both<I32>([=](int) { return vdupq_n_s32(x); }); }
INTAGLIO_SIMD I16 set16(int16_t x) { return both<I16>([=](int) { return vdupq_n_s16(x); }); }
INTAGLIO_SIMD I8 set8(int8_t x) { return both<I8>([=](int) { return vdupq_n_s8(x); }); }

// A part of a vector goes through a whole one in memory.
template <int COUNT, typename T>
struct Part { T lanes[COUNT] = {}; };
template <int COUNT, typename T>
INTAGLIO_SIMD Part<COUNT, T> part(const T* p, int n) {
    Part<COUNT, T> part;
    std::memcpy(part.lanes, p, size_t(n) * sizeof(T));
    return part;
}

INTAGLIO_SIMD I32 widened(int16x8_t v) { return {{vmovl_s16(vget_low_s16(v)), vmovl_high_s16(v)}}; }
INTAGLIO_SIMD I32 load32(const int32_t* p) { return both<I32>([=](int i) { return vld1q_s32(p + 4 * i); }); }
INTAGLIO_SIMD I32 load32(const int16_t* p) { return widened(vld1q_s16(p)); }
INTAGLIO_SIMD I32 load32(const int8_t* p) { return widened(vmovl_s8(vld1_s8(p))); }
template <typename T>
INTAGLIO_SIMD I32 load32(const T* p, int n) { return load32(part<LANES>(p, n).lanes); }

INTAGLIO_SIMD int16x8_t narrow(I32 v) { return vqmovn_high_s32(vqmovn_s32(v.v[0]), v.v[1]); }
INTAGLIO_SIMD int8x16_t narrow(I16 v) { return vqmovn_high_s16(vqmovn_s16(v.v[0]), v.v[1]); }
INTAGLIO_SIMD I16 narrow(I32 low, I32 high) { return {{narrow(low), narrow(high)}}; }
INTAGLIO_SIMD I8 narrow(I16 low, I16 high) { return {{narrow(low), narrow(high)}}; }
INTAGLIO_SIMD I8 narrow(I32 a, I32 b, I32 c, I32 d) { return narrow(narrow(a, b), narrow(c, d)); }
INTAGLIO_SIMD int16x8_t narrow_unsigned(I32 v) {
    return as_signed(vqmovun_high_s32(vqmovun_s32(v.v[0]), v.v[1]));
}
INTAGLIO_SIMD I16 narrow_unsigned(I32 low, I32 high) { return {{narrow_unsigned(low), narrow_unsigned(high)}}; }
INTAGLIO_SIMD I32 low32(I16 v) { return widened(v.v[0]); }
INTAGLIO_SIMD I32 high32(I16 v) { return widened(v.v[1]); }

INTAGLIO_SIMD I16 load16(const int32_t* p) { return narrow(load32(p), load32(p + LANES)); }
INTAGLIO_SIMD I16 load16(const int16_t* p) { return both<I16>([=](int i) { return vld1q_s16(p + 8 * i); }); }
INTAGLIO_SIMD I16 load16(const int8_t* p) { return both<I16>([=](int i) { return vmovl_s8(vld1_s8(p + 8 * i)); }); }
template <typename T>
INTAGLIO_SIMD I16 load16(const T* p, int n) { return load16(part<2 * LANES>(p, n).lanes); }
INTAGLIO_SIMD I8 load8(const int8_t* p) { return both<I8>([=](int i) { return vld1q_s8(p + 16 * i); }); }
INTAGLIO_SIMD I8 load8(const int8_t* p, int n) { return load8(part<4 * LANES>(p, n).lanes); }

INTAGLIO_SIMD void store(int32_t* p, I32 v) {
    for (int i = 0; i < 2; ++i) vst1q_s32(p + 4 * i, v.v[i]);
}
INTAGLIO_SIMD void store(int16_t* p, I16 v) {
    for (int i = 0; i < 2; ++i) vst1q_s16(p + 8 * i, v.v[i]);
}
INTAGLIO_SIMD void store(int32_t* p, I16 v) {
    store(p, low32(v));
    store(p + LANES, high32(v));
}
INTAGLIO_SIMD void store(int8_t* p, I8 v) {
    for (int i = 0; i < 2; ++i) vst1q_s8(p + 16 * i, v.v[i]);
}
INTAGLIO_SIMD void store_saturated(int8_t* p, I32 v) { vst1_s8(p, vqmovn_s16(narrow(v))); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I16 v) { vst1q_s8(p, narrow(v)); }

template <typename T, typename Vector>
INTAGLIO_SIMD void store(T* p, Vector v, int n) {
    T lanes[4 * LANES];
    store(lanes, v);
    std::memcpy(p, lanes, size_t(n) * sizeof(T));
}
template <typename Vector>
INTAGLIO_SIMD void store_saturated(int8_t* p, Vector v, int n) {
    int8_t lanes[2 * LANES];
    store_saturated(lanes, v);
    std::memcpy(p, lanes, size_t(n));
}

// --- arithmetic of 32 bits ------------------------------------------------------------------------------------------

INTAGLIO_SIMD I32 operator+(I32 a, I32 b) { return both<I32>([=](int i) { return vaddq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I32 operator-(I32 a, I32 b) { return both<I32>([=](int i) { return vsubq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I32 operator*(I32 a, I32 b) { return both<I32>([=](int i) { return vmulq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I32 operator&(I32 a, I32 b) { return both<I32>([=](int i) { return vandq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I32 operator|(I32 a, I32 b) { return both<I32>([=](int i) { return vorrq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I32 operator^(I32 a, I32 b) { return both<I32>([=](int i) { return veorq_s32(a.v[i], b.v[i]); }); }
// A shift by a negative count goes to the right.
INTAGLIO_SIMD I32 shift_left(I32 v, I32 counts) { return both<I32>([=](int i) { return vshlq_s32(v.v[i], counts.v[i]); }); }
INTAGLIO_SIMD I32 shift_right(I32 v, I32 counts) {
    return both<I32>([=](int i) { return vshlq_s32(v.v[i], vnegq_s32(counts.v[i])); });
}
INTAGLIO_SIMD I32 shift_right_logical(I32 v, I32 counts) {
    return both<I32>([=](int i) { return as_signed(vshlq_u32(bits(v.v[i]), vnegq_s32(counts.v[i]))); });
}
INTAGLIO_SIMD I32 operator<<(I32 v, int k) { return shift_left(v, set32(k)); }
INTAGLIO_SIMD I32 operator>>(I32 v, int k) { return shift_right(v, set32(k)); }
INTAGLIO_SIMD I32 shift_right_logical(I32 v, int k) { return shift_right_logical(v, set32(k)); }
INTAGLIO_SIMD I32 min(I32 a, I32 b) { return both<I32>([=](int i) { return vminq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I32 max(I32 a, I32 b) { return both<I32>([=](int i) { return vmaxq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I32 min_unsigned(I32 a, I32 b) {
    return both<I32>([=](int i) { return as_signed(vminq_u32(bits(a.v[i]), bits(b.v[i]))); });
}
INTAGLIO_SIMD I32 abs(I32 v) { return both<I32>([=](int i) { return vabsq_s32(v.v[i]); }); }
INTAGLIO_SIMD Mask32 operator>(I32 a, I32 b) { return both<Mask32>([=](int i) { return vcgtq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD Mask32 operator==(I32 a, I32 b) { return both<Mask32>([=](int i) { return vceqq_s32(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I32 select(Mask32 mask, I32 yes, I32 no) {
    return both<I32>([=](int i) { return vbslq_s32(mask.v[i], yes.v[i], no.v[i]); });
}

// --- arithmetic of 16 bits ------------------------------------------------------------------------------------------

INTAGLIO_SIMD I16 operator+(I16 a, I16 b) { return both<I16>([=](int i) { return vaddq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 operator-(I16 a, I16 b) { return both<I16>([=](int i) { return vsubq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 operator*(I16 a, I16 b) { return both<I16>([=](int i) { return vmulq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 operator&(I16 a, I16 b) { return both<I16>([=](int i) { return vandq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 operator|(I16 a, I16 b) { return both<I16>([=](int i) { return vorrq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 operator^(I16 a, I16 b) { return both<I16>([=](int i) { return veorq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 shift_left(I16 v, I16 counts) { return both<I16>([=](int i) { return vshlq_s16(v.v[i], counts.v[i]); }); }
INTAGLIO_SIMD I16 shift_right(I16 v, I16 counts) {
    return both<I16>([=](int i) { return vshlq_s16(v.v[i], vnegq_s16(counts.v[i])); });
}
INTAGLIO_SIMD I16 shift_right_logical(I16 v, I16 counts) {
    return both<I16>([=](int i) { return as_signed(vshlq_u16(bits(v.v[i]), vnegq_s16(counts.v[i]))); });
}
INTAGLIO_SIMD I16 operator<<(I16 v, int k) { return shift_left(v, set16(int16_t(k))); }
INTAGLIO_SIMD I16 operator>>(I16 v, int k) { return shift_right(v, set16(int16_t(k))); }
INTAGLIO_SIMD I16 shift_right_logical(I16 v, int k) { return shift_right_logical(v, set16(int16_t(k))); }
INTAGLIO_SIMD I16 min(I16 a, I16 b) { return both<I16>([=](int i) { return vminq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 max(I16 a, I16 b) { return both<I16>([=](int i) { return vmaxq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 min_unsigned(I16 a, I16 b) {
    return both<I16>([=](int i) { return as_signed(vminq_u16(bits(a.v[i]), bits(b.v[i]))); });
}
INTAGLIO_SIMD I16 abs(I16 v) { return both<I16>([=](int i) { return vabsq_s16(v.v[i]); }); }
INTAGLIO_SIMD Mask16 operator>(I16 a, I16 b) { return both<Mask16>([=](int i) { return vcgtq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD Mask16 operator==(I16 a, I16 b) { return both<Mask16>([=](int i) { return vceqq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 select(Mask16 mask, I16 yes, I16 no) {
    return both<I16>([=](int i) { return vbslq_s16(mask.v[i], yes.v[i], no.v[i]); });
}
INTAGLIO_SIMD I16 add_saturated(I16 a, I16 b) { return both<I16>([=](int i) { return vqaddq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 subtract_saturated(I16 a, I16 b) { return both<I16>([=](int i) { return vqsubq_s16(a.v[i], b.v[i]); }); }
INTAGLIO_SIMD I16 subtract_saturated_unsigned(I16 a, I16 b) {
    return both<I16>([=](int i) { return as_signed(vqsubq_u16(bits(a.v[i]), bits(b.v[i]))); });
}

INTAGLIO_SIMD int32x4_t low_products(int16x8_t a, int16x8_t b) { return vmull_s16(vget_low_s16(a), vget_low_s16(b)); }
// vqrdmulhq_s16 would saturate -32768·-32768, which wraps here.
INTAGLIO_SIMD I16 multiply_q15(I16 a, I16 b) {
    return both<I16>([=](int i) {
        return vrshrn_high_n_s32(vrshrn_n_s32(low_products(a.v[i], b.v[i]), 15), vmull_high_s16(a.v[i], b.v[i]), 15);
    });
}
INTAGLIO_SIMD I16 multiply_high_unsigned(I16 a, I16 b) {
    return both<I16>([=](int i) {
        const uint16x8_t x = bits(a.v[i]), y = bits(b.v[i]);
        const uint16x4_t low = vshrn_n_u32(vmull_u16(vget_low_u16(x), vget_low_u16(y)), 16);
        return as_signed(vshrn_high_n_u32(low, vmull_high_u16(x, y), 16));
    });
}
INTAGLIO_SIMD I32 multiply_add_pairs(I16 a, I16 b) {
    return both<I32>([=](int i) { return vpaddq_s32(low_products(a.v[i], b.v[i]), vmull_high_s16(a.v[i], b.v[i])); });
}

// --- across lanes ---------------------------------------------------------------------------------------------------

INTAGLIO_SIMD int32_t sum(I32 v) { return vaddvq_s32(vaddq_s32(v.v[0], v.v[1])); }
INTAGLIO_SIMD int32_t largest(I32 v) { return vmaxvq_s32(vmaxq_s32(v.v[0], v.v[1])); }
INTAGLIO_SIMD int32_t smallest(I32 v) { return vminvq_s32(vminq_s32(v.v[0], v.v[1])); }
INTAGLIO_SIMD int32_t largest(I16 v) { return vmaxvq_s16(vmaxq_s16(v.v[0], v.v[1])); }

INTAGLIO_SIMD Sum64 zero64() { return {vdupq_n_s64(0)}; }
INTAGLIO_SIMD Sum64 add_unsigned(Sum64 s, I32 v) {
    const uint64x2_t first = vpadalq_u32(vreinterpretq_u64_s64(s.v), bits(v.v[0]));
    return {vreinterpretq_s64_u64(vpadalq_u32(first, bits(v.v[1])))};
}
INTAGLIO_SIMD Sum64 add_signed(Sum64 s, I32 v) { return {vpadalq_s32(vpadalq_s32(s.v, v.v[0]), v.v[1])}; }
INTAGLIO_SIMD int64_t sum(Sum64 s) { return vaddvq_s64(s.v); }

// --- requantisation -------------------------------------------------------------------------------------------------

// Two of the lanes each.
INTAGLIO_SIMD int32x2_t two_lanes(I32 v, int i) { return i % 2 ? vget_high_s32(v.v[i / 2]) : vget_low_s32(v.v[i / 2]); }

struct RoundShift { Wide right, half; };

INTAGLIO_SIMD RoundShift round_shift_of(I32 shift) {
    const Wide counts = four([=](int i) { return vmovl_s32(two_lanes(shift, i)); });
    const int64x2_t one = vdupq_n_s64(1);
    // 2^(s-1); 0 for a shift by 0 - 1, which goes to the right
    return {four([&](int i) { return vnegq_s64(counts.v[i]); }),
            four([&](int i) { return vshlq_s64(one, vsubq_s64(counts.v[i], one)); })};
}

INTAGLIO_SIMD Wide multiply_wide(I32 x, I32 m) {
    return four([=](int i) { return vmull_s32(two_lanes(x, i), two_lanes(m, i)); });
}
INTAGLIO_SIMD Wide operator+(Wide a, Wide b) {
    return four([&](int i) { return vaddq_s64(a.v[i], b.v[i]); });
}
INTAGLIO_SIMD I32 round_shift16(Wide w, const RoundShift& r) {
    const Wide shifted = four([&](int i) { return vshlq_s64(vaddq_s64(w.v[i], r.half.v[i]), r.right.v[i]); });
    const int32x4_t low = vdupq_n_s32(-32768), high = vdupq_n_s32(32767);
    return both<I32>([&](int i) {
        const int32x4_t v = vqmovn_high_s64(vqmovn_s64(shifted.v[2 * i]), shifted.v[2 * i + 1]);
        return vminq_s32(vmaxq_s32(v, low), high);
    });
}

INTAGLIO_SIMD I32 odd_lanes(I32 v) { return v; }  // the lanes are multiplied where they are
INTAGLIO_SIMD I32 multiply_high(I32 a, I32 b, I32) {
    const Wide products = multiply_wide(a, b);
    return both<I32>([&](int i) {
        return vuzp2q_s32(vreinterpretq_s32_s64(products.v[2 * i]), vreinterpretq_s32_s64(products.v[2 * i + 1]));
    });
}

// The exponents of the lanes as float32, which are floor(log2|v|), or one more just below a power of two; -127 for 0.
INTAGLIO_SIMD I32 binary_exponent(I32 v) {
    return both<I32>([=](int i) {
        const int32x4_t bits = vreinterpretq_s32_f32(vcvtq_f32_s32(v.v[i]));
        return vsubq_s32(vandq_s32(vshrq_n_s32(bits, 23), vdupq_n_s32(255)), vdupq_n_s32(127));
    });
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
