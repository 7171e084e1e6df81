// The vectors of simd.h in plain C++, for any CPU: arrays of 8 lanes of 32 bits, and loops that compilers vectorise. Beside
// matrix tiles they have 16 lanes, as AVX-512 has.
#pragma once

namespace intaglio::INTAGLIO_ISA {
namespace {

#if INTAGLIO_TILES
constexpr int LANES = 16;
#else
constexpr int LANES = 8;
#endif

struct I32 { int32_t v[LANES]; };
struct I16 { int16_t v[2 * LANES]; };
struct I8 { int8_t v[4 * LANES]; };
struct Mask32 { bool v[LANES]; };
struct Mask16 { bool v[2 * LANES]; };
struct Wide { int64_t v[LANES]; };
struct Sum64 { int64_t value; };

// Each lane of a result from its number.
template <typename Vector, typename Function>
INTAGLIO_SIMD Vector lanes(Function function) {
    Vector result;
    for (int i = 0; i < int(sizeof(result.v) / sizeof(result.v[0])); ++i) result.v[i] = function(i);
    return result;
}
INTAGLIO_SIMD int8_t saturated8(int32_t x) { return int8_t(x < -128 ? -128 : x > 127 ? 127 : x); }
INTAGLIO_SIMD int16_t saturated16(int32_t x) { return int16_t(x < -32768 ? -32768 : x > 32767 ? 32767 : x); }

// --- memory ---------------------------------------------------------------------------------------------------------

INTAGLIO_SIMD I32 set32(int32_t x) { return lanes<I32>([=](int) { return x; }); }
INTAGLIO_SIMD I16 set16(int16_t x) { return lanes<I16>([=](int) { return x; }); }
INTAGLIO_SIMD I8 set8(int8_t x) { return lanes<I8>([=](int) { return x; }); }

template <typename T>
INTAGLIO_SIMD I32 load32(const T* p) { return lanes<I32>([=](int i) { return int32_t(p[i]); }); }
template <typename T>
INTAGLIO_SIMD I32 load32(const T* p, int n) { return lanes<I32>([=](int i) { return i < n ? int32_t(p[i]) : 0; }); }
template <typename T>
INTAGLIO_SIMD I16 load16(const T* p) { return lanes<I16>([=](int i) { return saturated16(p[i]); }); }
template <typename T>
INTAGLIO_SIMD I16 load16(const T* p, int n) {
    return lanes<I16>([=](int i) { return i < n ? saturated16(p[i]) : int16_t(0); });
}
INTAGLIO_SIMD I8 load8(const int8_t* p) { return lanes<I8>([=](int i) { return p[i]; }); }
INTAGLIO_SIMD I8 load8(const int8_t* p, int n) { return lanes<I8>([=](int i) { return i < n ? p[i] : int8_t(0); }); }

INTAGLIO_SIMD void store(int32_t* p, I32 v) { std::memcpy(p, v.v, sizeof(v.v)); }
INTAGLIO_SIMD void store(int32_t* p, I32 v, int n) { std::memcpy(p, v.v, size_t(n) * sizeof(v.v[0])); }
INTAGLIO_SIMD void store(int16_t* p, I16 v) { std::memcpy(p, v.v, sizeof(v.v)); }
INTAGLIO_SIMD void store(int16_t* p, I16 v, int n) { std::memcpy(p, v.v, size_t(n) * sizeof(v.v[0])); }
INTAGLIO_SIMD void store(int32_t* p, I16 v, int n) {
    for (int i = 0; i < n; ++i) p[i] = v.v[i];
}
INTAGLIO_SIMD void store(int32_t* p, I16 v) { store(p, v, 2 * LANES); }
INTAGLIO_SIMD void store(int8_t* p, I8 v) { std::memcpy(p, v.v, sizeof(v.v)); }
INTAGLIO_SIMD void store(int8_t* p, I8 v, int n) { std::memcpy(p, v.v, size_t(n)); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I32 v, int n) {
    for (int i = 0; i < n; ++i) p[i] = saturated8(v.v[i]);
}
INTAGLIO_SIMD void store_saturated(int8_t* p, I32 v) { store_saturated(p, v, LANES); }
INTAGLIO_SIMD void store_saturated(int8_t* p, I16 v, int n) {
    for (int i = 0; i < n; ++i) p[i] = saturated8(v.v[i]);
}
INTAGLIO_SIMD void store_saturated(int8_t* p, I16 v) { store_saturated(p, v, 2 * LANES); }

// Half of the lanes from each, by two loops: GCC unrolls one over both beyond their ends, and warns of it.
template <typename Function>
INTAGLIO_SIMD I16 halves(I32 low, I32 high, Function function) {
    I16 result;
    for (int i = 0; i < LANES; ++i) result.v[i] = function(low.v[i]);
    for (int i = 0; i < LANES; ++i) result.v[LANES + i] = function(high.v[i]);
    return result;
}
INTAGLIO_SIMD I16 narrow(I32 low, I32 high) {
    return halves(low, high, [](int32_t x) { return saturated16(x); });
}
INTAGLIO_SIMD I16 narrow_unsigned(I32 low, I32 high) {
    return halves(low, high, [](int32_t x) { return int16_t(uint16_t(x < 0 ? 0 : x > 65535 ? 65535 : x)); });
}
INTAGLIO_SIMD I8 narrow(I16 low, I16 high) {
    I8 result;
    store_saturated(result.v, low);
    store_saturated(result.v + 2 * LANES, high);
    return result;
}
INTAGLIO_SIMD I8 narrow(I32 a, I32 b, I32 c, I32 d) { return narrow(narrow(a, b), narrow(c, d)); }
INTAGLIO_SIMD I32 low32(I16 v) { return lanes<I32>([=](int i) { return v.v[i]; }); }
INTAGLIO_SIMD I32 high32(I16 v) { return lanes<I32>([=](int i) { return v.v[LANES + i]; }); }

// --- arithmetic of 32 bits, in unsigned numbers where it wraps ------------------------------------------------------

INTAGLIO_SIMD I32 operator+(I32 a, I32 b) { return lanes<I32>([=](int i) { return int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i])); }); }
INTAGLIO_SIMD I32 operator-(I32 a, I32 b) { return lanes<I32>([=](int i) { return int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])); }); }
INTAGLIO_SIMD I32 operator*(I32 a, I32 b) { return lanes<I32>([=](int i) { return int32_t(uint32_t(a.v[i]) * uint32_t(b.v[i])); }); }
INTAGLIO_SIMD I32 operator&(I32 a, I32 b) { return lanes<I32>([=](int i) { return a.v[i] & b.v[i]; }); }
INTAGLIO_SIMD I32 operator|(I32 a, I32 b) { return lanes<I32>([=](int i) { return a.v[i] | b.v[i]; }); }
INTAGLIO_SIMD I32 operator^(I32 a, I32 b) { return lanes<I32>([=](int i) { return a.v[i] ^ b.v[i]; }); }
INTAGLIO_SIMD I32 shift_left(I32 v, I32 counts) { return lanes<I32>([=](int i) { return int32_t(uint32_t(v.v[i]) << counts.v[i]); }); }
INTAGLIO_SIMD I32 shift_right(I32 v, I32 counts) { return lanes<I32>([=](int i) { return v.v[i] >> counts.v[i]; }); }
INTAGLIO_SIMD I32 shift_right_logical(I32 v, I32 counts) { return lanes<I32>([=](int i) { return int32_t(uint32_t(v.v[i]) >> counts.v[i]); }); }
INTAGLIO_SIMD I32 operator<<(I32 v, int k) { return shift_left(v, set32(k)); }
INTAGLIO_SIMD I32 operator>>(I32 v, int k) { return shift_right(v, set32(k)); }
INTAGLIO_SIMD I32 shift_right_logical(I32 v, int k) { return shift_right_logical(v, set32(k)); }
INTAGLIO_SIMD I32 min(I32 a, I32 b) { return lanes<I32>([=](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
INTAGLIO_SIMD I32 max(I32 a, I32 b) { return lanes<I32>([=](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
INTAGLIO_SIMD I32 min_unsigned(I32 a, I32 b) { return lanes<I32>([=](int i) { return uint32_t(a.v[i]) < uint32_t(b.v[i]) ? a.v[i] : b.v[i]; }); }
INTAGLIO_SIMD I32 abs(I32 v) { return lanes<I32>([=](int i) { return v.v[i] < 0 ? int32_t(-uint32_t(v.v[i])) : v.v[i]; }); }
INTAGLIO_SIMD Mask32 operator>(I32 a, I32 b) { return lanes<Mask32>([=](int i) { return a.v[i] > b.v[i]; }); }
INTAGLIO_SIMD Mask32 operator==(I32 a, I32 b) { return lanes<Mask32>([=](int i) { return a.v[i] == b.v[i]; }); }
INTAGLIO_SIMD I32 select(Mask32 mask, I32 yes, I32 no) { return lanes<I32>([=](int i) { return mask.v[i] ? yes.v[i] : no.v[i]; }); }

// --- arithmetic of 16 bits ------------------------------------------------------------------------------------------

INTAGLIO_SIMD I16 operator+(I16 a, I16 b) { return lanes<I16>([=](int i) { return int16_t(a.v[i] + b.v[i]); }); }
INTAGLIO_SIMD I16 operator-(I16 a, I16 b) { return lanes<I16>([=](int i) { return int16_t(a.v[i] - b.v[i]); }); }
INTAGLIO_SIMD I16 operator*(I16 a, I16 b) { return lanes<I16>([=](int i) { return int16_t(a.v[i] * b.v[i]); }); }
INTAGLIO_SIMD I16 operator&(I16 a, I16 b) { return lanes<I16>([=](int i) { return int16_t(a.v[i] & b.v[i]); }); }
INTAGLIO_SIMD I16 operator|(I16 a, I16 b) { return lanes<I16>([=](int i) { return int16_t(a.v[i] | b.v[i]); }); }
INTAGLIO_SIMD I16 operator^(I16 a, I16 b) { return lanes<I16>([=](int i) { return int16_t(a.v[i] ^ b.v[i]); }); }
INTAGLIO_SIMD I16 shift_left(I16 v, I16 counts) { return lanes<I16>([=](int i) { return int16_t(uint32_t(v.v[i]) << counts.v[i]); }); }
INTAGLIO_SIMD I16 shift_right(I16 v, I16 counts) { return lanes<I16>([=](int i) { return int16_t(v.v[i] >> counts.v[i]); }); }
INTAGLIO_SIMD I16 shift_right_logical(I16 v, I16 counts) { return lanes<I16>([=](int i) { return int16_t(uint16_t(v.v[i]) >> counts.v[i]); }); }
INTAGLIO_SIMD I16 operator<<(I16 v, int k) { return shift_left(v, set16(int16_t(k))); }
INTAGLIO_SIMD I16 operator>>(I16 v, int k) { return shift_right(v, set16(int16_t(k))); }
INTAGLIO_SIMD I16 shift_right_logical(I16 v, int k) { return shift_right_logical(v, set16(int16_t(k))); }
INTAGLIO_SIMD I16 min(I16 a, I16 b) { return lanes<I16>([=](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
INTAGLIO_SIMD I16 max(I16 a, I16 b) { return lanes<I16>([=](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
INTAGLIO_SIMD I16 min_unsigned(I16 a, I16 b) { return lanes<I16>([=](int i) { return uint16_t(a.v[i]) < uint16_t(b.v[i]) ? a.v[i] : b.v[i]; }); }
INTAGLIO_SIMD I16 abs(I16 v) { return lanes<I16>([=](int i) { return int16_t(v.v[i] < 0 ? -v.v[i] : v.v[i]); }); }
INTAGLIO_SIMD Mask16 operator>(I16 a, I16 b) { return lanes<Mask16>([=](int i) { return a.v[i] > b.v[i]; }); }
INTAGLIO_SIMD Mask16 operator==(I16 a, I16 b) { return lanes<Mask16>([=](int i) { return a.v[i] == b.v[i]; }); }
INTAGLIO_SIMD I16 select(Mask16 mask, I16 yes, I16 no) { return lanes<I16>([=](int i) { return mask.v[i] ? yes.v[i] : no.v[i]; }); }
INTAGLIO_SIMD I16 add_saturated(I16 a, I16 b) { return lanes<I16>([=](int i) { return saturated16(a.v[i] + b.v[i]); }); }
INTAGLIO_SIMD I16 subtract_saturated(I16 a, I16 b) { return lanes<I16>([=](int i) { return saturated16(a.v[i] - b.v[i]); }); }
INTAGLIO_SIMD I16 subtract_saturated_unsigned(I16 a, I16 b) {
    return lanes<I16>([=](int i) { return int16_t(uint16_t(a.v[i]) > uint16_t(b.v[i]) ? uint16_t(a.v[i]) - uint16_t(b.v[i]) : 0); });
}
INTAGLIO_SIMD I16 multiply_q15(I16 a, I16 b) { return lanes<I16>([=](int i) { return int16_t((a.v[i] * b.v[i] + (1 << 14)) >> 15); }); }
INTAGLIO_SIMD I16 multiply_high_unsigned(I16 a, I16 b) {
    return lanes<I16>([=](int i) { return int16_t((uint32_t(uint16_t(a.v[i])) * uint16_t(b.v[i])) >> 16); });
}
INTAGLIO_SIMD I32 multiply_add_pairs(I16 a, I16 b) {
    I32 result;
#pragma GCC unroll 1  // or else GCC unrolls it before it could vectorise it, which is three times slower
    for (int i = 0; i < LANES; ++i) {
        result.v[i] = int32_t(uint32_t(a.v[2 * i] * b.v[2 * i]) + uint32_t(a.v[2 * i + 1] * b.v[2 * i + 1]));
    }
    return result;
}

// --- across lanes ---------------------------------------------------------------------------------------------------

INTAGLIO_SIMD int32_t sum(I32 v) {
    uint32_t total = 0;
    for (int i = 0; i < LANES; ++i) total += uint32_t(v.v[i]);
    return int32_t(total);
}
INTAGLIO_SIMD int32_t largest(I32 v) {
    int32_t result = v.v[0];
    for (int i = 1; i < LANES; ++i) result = v.v[i] > result ? v.v[i] : result;
    return result;
}
INTAGLIO_SIMD int32_t smallest(I32 v) {
    int32_t result = v.v[0];
    for (int i = 1; i < LANES; ++i) result = v.v[i] < result ? v.v[i] : result;
    return result;
}
INTAGLIO_SIMD int32_t largest(I16 v) { return largest(max(low32(v), high32(v))); }

INTAGLIO_SIMD Sum64 zero64() { return {0}; }
INTAGLIO_SIMD Sum64 add_unsigned(Sum64 s, I32 v) {
    for (int i = 0; i < LANES; ++i) s.value += uint32_t(v.v[i]);
    return s;
}
INTAGLIO_SIMD Sum64 add_signed(Sum64 s, I32 v) {
    for (int i = 0; i < LANES; ++i) s.value += v.v[i];
    return s;
}
INTAGLIO_SIMD int64_t sum(Sum64 s) { return s.value; }

// --- requantisation -------------------------------------------------------------------------------------------------

struct RoundShift { I32 shift; Wide half; };

INTAGLIO_SIMD RoundShift round_shift_of(I32 shift) {
    return {shift, lanes<Wide>([=](int i) { return (int64_t(1) << shift.v[i]) >> 1; })};
}
INTAGLIO_SIMD Wide multiply_wide(I32 x, I32 m) { return lanes<Wide>([=](int i) { return int64_t(x.v[i]) * m.v[i]; }); }
INTAGLIO_SIMD Wide operator+(Wide a, Wide b) { return lanes<Wide>([=](int i) { return a.v[i] + b.v[i]; }); }
INTAGLIO_SIMD I32 round_shift16(Wide w, const RoundShift& r) {
    return lanes<I32>([&](int i) { return intaglio::clip16((w.v[i] + r.half.v[i]) >> r.shift.v[i]); });
}

INTAGLIO_SIMD I32 odd_lanes(I32 v) { return v; }  // the lanes are multiplied where they are
INTAGLIO_SIMD I32 multiply_high(I32 a, I32 b, I32) {
    return lanes<I32>([=](int i) { return int32_t((int64_t(a.v[i]) * b.v[i]) >> 32); });
}

// floor(log2|v|); -127 for 0, as where it is taken from float32.
INTAGLIO_SIMD I32 binary_exponent(I32 v) {
    return lanes<I32>([=](int i) {
        return v.v[i] == 0 ? -127 : intaglio::bit_length(v.v[i] < 0 ? -uint32_t(v.v[i]) : uint32_t(v.v[i])) - 1;
    });
}

}  // namespace
}  // namespace intaglio::INTAGLIO_ISA
