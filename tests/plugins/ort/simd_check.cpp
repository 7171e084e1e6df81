// Every function of plugins/cpu/simd.h, and those of simd_exp.h and simd_gelu.h, against its definition on one lane, for the
// instruction set it is compiled for.
// Prints the name of each that differs; the exit status is their number.
#include "plugins/integer_constants.h"
#include "plugins/cpu/simd.h"
#include "plugins/cpu/simd_exp.h"
#include "plugins/cpu/simd_gelu.h"

#include <cstdio>
#include <random>
#include <vector>

using namespace intaglio::INTAGLIO_ISA;

static std::mt19937_64 generator(1);
static int failures = 0;

static int64_t random_value(int bits) {  // of any magnitude up to `bits` bits, the extremes among them
    const uint64_t r = generator();
    const int64_t low = -(int64_t(1) << (bits - 1));
    if (r % 16 == 0) return low;
    if (r % 16 == 1) return -low - 1;
    return (int64_t(generator()) >> (64 - bits)) >> (r >> 8) % uint64_t(bits);
}

template <typename T>
struct Array {  // more lanes than any vector has
    T v[80];
    explicit Array(bool random = true) {
        for (T& lane : v) lane = random ? T(random_value(8 * sizeof(T))) : T(85);
    }
    bool operator==(const Array& other) const { return std::memcmp(v, other.v, sizeof v) == 0; }
};

static void expect(bool right, const char* what) {
    if (!right) {
        std::printf("%s differs\n", what);
        ++failures;
    }
}

// Lanes of T, result lanes of R, computed by the vector function and by `scalar` from the lane's number.
template <typename R, typename Store, typename Scalar>
static void check(const char* what, int count, Store store_vector, Scalar scalar) {
    Array<R> got(false), want(false);
    store_vector(got.v);
    for (int i = 0; i < count; ++i) want.v[i] = R(scalar(i));
    expect(got == want, what);
}

static int32_t wrap32(int64_t x) { return int32_t(uint32_t(x)); }
static int16_t wrap16(int64_t x) { return int16_t(uint16_t(x)); }
static int64_t limit(int64_t x, int bits) {
    const int64_t high = (int64_t(1) << (bits - 1)) - 1;
    return x > high ? high : x < -high - 1 ? -high - 1 : x;
}

static void memory(int n) {  // n lanes, or all where n is the number of lanes
    const Array<int32_t> a;
    const Array<int16_t> b;
    const Array<int8_t> c;
    const bool whole32 = n == LANES, whole16 = n == 2 * LANES, whole8 = n == 4 * LANES;
    const auto inside = [n](int i, int64_t x) { return i < n ? x : 0; };
    if (n <= LANES) {
        check<int32_t>("load32 int32", LANES, [&](int32_t* p) { store(p, whole32 ? load32(a.v) : load32(a.v, n)); }, [&](int i) { return inside(i, a.v[i]); });
        check<int32_t>("load32 int16", LANES, [&](int32_t* p) { store(p, whole32 ? load32(b.v) : load32(b.v, n)); }, [&](int i) { return inside(i, b.v[i]); });
        check<int32_t>("load32 int8", LANES, [&](int32_t* p) { store(p, whole32 ? load32(c.v) : load32(c.v, n)); }, [&](int i) { return inside(i, c.v[i]); });
        check<int32_t>("store int32", n, [&](int32_t* p) { whole32 ? store(p, load32(a.v)) : store(p, load32(a.v), n); }, [&](int i) { return a.v[i]; });
        check<int8_t>("store_saturated I32", n, [&](int8_t* p) { whole32 ? store_saturated(p, load32(a.v)) : store_saturated(p, load32(a.v), n); }, [&](int i) { return limit(a.v[i], 8); });
    }
    if (n <= 2 * LANES) {
        check<int16_t>("load16 int16", 2 * LANES, [&](int16_t* p) { store(p, whole16 ? load16(b.v) : load16(b.v, n)); }, [&](int i) { return inside(i, b.v[i]); });
        check<int16_t>("load16 int8", 2 * LANES, [&](int16_t* p) { store(p, whole16 ? load16(c.v) : load16(c.v, n)); }, [&](int i) { return inside(i, c.v[i]); });
        check<int16_t>("load16 int32", 2 * LANES, [&](int16_t* p) { store(p, whole16 ? load16(a.v) : load16(a.v, n)); }, [&](int i) { return inside(i, limit(a.v[i], 16)); });
        check<int16_t>("store int16", n, [&](int16_t* p) { whole16 ? store(p, load16(b.v)) : store(p, load16(b.v), n); }, [&](int i) { return b.v[i]; });
        check<int32_t>("store I16 to int32", n, [&](int32_t* p) { whole16 ? store(p, load16(b.v)) : store(p, load16(b.v), n); }, [&](int i) { return b.v[i]; });
        check<int8_t>("store_saturated I16", n, [&](int8_t* p) { whole16 ? store_saturated(p, load16(b.v)) : store_saturated(p, load16(b.v), n); }, [&](int i) { return limit(b.v[i], 8); });
    }
    check<int8_t>("load8", 4 * LANES, [&](int8_t* p) { store(p, whole8 ? load8(c.v) : load8(c.v, n)); }, [&](int i) { return inside(i, c.v[i]); });
    check<int8_t>("store I8", n, [&](int8_t* p) { whole8 ? store(p, load8(c.v)) : store(p, load8(c.v), n); }, [&](int i) { return c.v[i]; });
}

static void arithmetic32() {
    const Array<int32_t> a;
    Array<int32_t> b, counts;
    for (int i = 0; i < 80; ++i) {
        counts.v[i] &= 31;
        if (i % 5 == 0) b.v[i] = a.v[i];
    }
    const I32 x = load32(a.v), y = load32(b.v), s = load32(counts.v);
    const int k = counts.v[0];
    const auto each = [&](const char* what, I32 v, auto scalar) {
        check<int32_t>(what, LANES, [&](int32_t* p) { store(p, v); }, [&](int i) { return scalar(int64_t(a.v[i]), int64_t(b.v[i]), i); });
    };
    each("set32", set32(-7), [](int64_t, int64_t, int) { return -7; });
    each("+ 32", x + y, [](int64_t p, int64_t q, int) { return wrap32(p + q); });
    each("- 32", x - y, [](int64_t p, int64_t q, int) { return wrap32(p - q); });
    each("* 32", x * y, [](int64_t p, int64_t q, int) { return wrap32(p * q); });
    each("& 32", x & y, [](int64_t p, int64_t q, int) { return p & q; });
    each("| 32", x | y, [](int64_t p, int64_t q, int) { return p | q; });
    each("^ 32", x ^ y, [](int64_t p, int64_t q, int) { return p ^ q; });
    each("<< 32", x << k, [&](int64_t p, int64_t, int) { return wrap32(p * (int64_t(1) << k)); });
    each(">> 32", x >> k, [&](int64_t p, int64_t, int) { return p >> k; });
    each("shift_right_logical 32 uniform", shift_right_logical(x, k), [&](int64_t p, int64_t, int) { return wrap32(uint32_t(p) >> k); });
    each("shift_left 32", shift_left(x, s), [&](int64_t p, int64_t, int i) { return wrap32(p * (int64_t(1) << counts.v[i])); });
    each("shift_right 32", shift_right(x, s), [&](int64_t p, int64_t, int i) { return p >> counts.v[i]; });
    each("shift_right_logical 32", shift_right_logical(x, s), [&](int64_t p, int64_t, int i) { return wrap32(uint32_t(p) >> counts.v[i]); });
    each("min 32", min(x, y), [](int64_t p, int64_t q, int) { return p < q ? p : q; });
    each("max 32", max(x, y), [](int64_t p, int64_t q, int) { return p > q ? p : q; });
    each("min_unsigned 32", min_unsigned(x, y), [](int64_t p, int64_t q, int) { return uint32_t(p) < uint32_t(q) ? p : q; });
    each("abs 32", abs(x), [](int64_t p, int64_t, int) { return wrap32(p < 0 ? -p : p); });
    each("> 32", select(x > y, x, y), [](int64_t p, int64_t q, int) { return p > q ? p : q; });
    each("== 32", select(x == y, set32(1), set32(0)), [](int64_t p, int64_t q, int) { return p == q; });
    each("clip16", clip16(x), [](int64_t p, int64_t, int) { return limit(p, 16); });
    each("clip8 32", clip8(x), [](int64_t p, int64_t, int) { return limit(p, 8); });

    int64_t total = 0, total_unsigned = 0, high = INT32_MIN, low = INT32_MAX;
    for (int i = 0; i < LANES; ++i) {
        total += a.v[i];
        total_unsigned += uint32_t(a.v[i]);
        high = a.v[i] > high ? a.v[i] : high;
        low = a.v[i] < low ? a.v[i] : low;
    }
    expect(sum(x) == wrap32(total), "sum 32");
    expect(largest(x) == high, "largest 32");
    expect(smallest(x) == low, "smallest 32");
    expect(sum(add_signed(add_signed(zero64(), x), x)) == 2 * total, "add_signed");
    expect(sum(add_unsigned(add_unsigned(zero64(), x), x)) == 2 * total_unsigned, "add_unsigned");
}

static void arithmetic16() {
    const Array<int16_t> a;
    Array<int16_t> b, counts;
    for (int i = 0; i < 80; ++i) {
        counts.v[i] &= 15;
        if (i % 5 == 0) b.v[i] = a.v[i];
    }
    const I16 x = load16(a.v), y = load16(b.v), s = load16(counts.v);
    const int k = counts.v[0];
    const auto each = [&](const char* what, I16 v, auto scalar) {
        check<int16_t>(what, 2 * LANES, [&](int16_t* p) { store(p, v); }, [&](int i) { return scalar(int32_t(a.v[i]), int32_t(b.v[i]), i); });
    };
    each("set16", set16(-7), [](int32_t, int32_t, int) { return -7; });
    each("+ 16", x + y, [](int32_t p, int32_t q, int) { return wrap16(p + q); });
    each("- 16", x - y, [](int32_t p, int32_t q, int) { return wrap16(p - q); });
    each("* 16", x * y, [](int32_t p, int32_t q, int) { return wrap16(p * q); });
    each("& 16", x & y, [](int32_t p, int32_t q, int) { return p & q; });
    each("| 16", x | y, [](int32_t p, int32_t q, int) { return p | q; });
    each("^ 16", x ^ y, [](int32_t p, int32_t q, int) { return p ^ q; });
    each("<< 16", x << k, [&](int64_t p, int32_t, int) { return wrap16(p * (int64_t(1) << k)); });
    each(">> 16", x >> k, [&](int32_t p, int32_t, int) { return p >> k; });
    each("shift_right_logical 16 uniform", shift_right_logical(x, k), [&](int32_t p, int32_t, int) { return wrap16(uint16_t(p) >> k); });
    each("shift_left 16", shift_left(x, s), [&](int64_t p, int32_t, int i) { return wrap16(p * (int64_t(1) << counts.v[i])); });
    each("shift_right 16", shift_right(x, s), [&](int32_t p, int32_t, int i) { return p >> counts.v[i]; });
    each("shift_right_logical 16", shift_right_logical(x, s), [&](int32_t p, int32_t, int i) { return wrap16(uint16_t(p) >> counts.v[i]); });
    each("shift_right_logical 16 beyond its width", shift_right_logical(x, s + set16(16)), [](int32_t, int32_t, int) { return 0; });
    each("min 16", min(x, y), [](int32_t p, int32_t q, int) { return p < q ? p : q; });
    each("max 16", max(x, y), [](int32_t p, int32_t q, int) { return p > q ? p : q; });
    each("min_unsigned 16", min_unsigned(x, y), [](int32_t p, int32_t q, int) { return uint16_t(p) < uint16_t(q) ? p : q; });
    each("abs 16", abs(x), [](int32_t p, int32_t, int) { return wrap16(p < 0 ? -p : p); });
    each("> 16", select(x > y, x, y), [](int32_t p, int32_t q, int) { return p > q ? p : q; });
    each("== 16", select(x == y, set16(1), set16(0)), [](int32_t p, int32_t q, int) { return p == q; });
    each("clip8 16", clip8(x), [](int32_t p, int32_t, int) { return limit(p, 8); });
    each("add_saturated", add_saturated(x, y), [](int32_t p, int32_t q, int) { return limit(p + q, 16); });
    each("subtract_saturated", subtract_saturated(x, y), [](int32_t p, int32_t q, int) { return limit(p - q, 16); });
    each("subtract_saturated_unsigned", subtract_saturated_unsigned(x, y), [](int32_t p, int32_t q, int) { return wrap16(uint16_t(p) > uint16_t(q) ? uint16_t(p) - uint16_t(q) : 0); });
    each("multiply_q15", multiply_q15(x, y), [](int32_t p, int32_t q, int) { return wrap16((p * q + (1 << 14)) >> 15); });
    each("multiply_high_unsigned", multiply_high_unsigned(x, y), [](int32_t p, int32_t q, int) { return wrap16((uint32_t(uint16_t(p)) * uint16_t(q)) >> 16); });
    check<int32_t>("multiply_add_pairs", LANES, [&](int32_t* p) { store(p, multiply_add_pairs(x, y)); }, [&](int i) {
        return wrap32(int64_t(a.v[2 * i]) * b.v[2 * i] + int64_t(a.v[2 * i + 1]) * b.v[2 * i + 1]);
    });
    check<int32_t>("low32", LANES, [&](int32_t* p) { store(p, low32(x)); }, [&](int i) { return a.v[i]; });
    check<int32_t>("high32", LANES, [&](int32_t* p) { store(p, high32(x)); }, [&](int i) { return a.v[LANES + i]; });
    check<int8_t>("narrow 16", 4 * LANES, [&](int8_t* p) { store(p, narrow(x, load16(a.v + 2 * LANES))); }, [&](int i) { return limit(a.v[i], 8); });
    int high = INT16_MIN;
    for (int i = 0; i < 2 * LANES; ++i) high = a.v[i] > high ? a.v[i] : high;
    expect(largest(x) == high, "largest 16");
}

static void narrowing() {
    const Array<int32_t> a;
    I32 x[4];
    for (int i = 0; i < 4; ++i) x[i] = load32(a.v + i * LANES);
    check<int16_t>("narrow 32", 2 * LANES, [&](int16_t* p) { store(p, narrow(x[0], x[1])); }, [&](int i) { return limit(a.v[i], 16); });
    check<int16_t>("narrow_unsigned", 2 * LANES, [&](int16_t* p) { store(p, narrow_unsigned(x[0], x[1])); }, [&](int i) { return wrap16(a.v[i] < 0 ? 0 : a.v[i] > 65535 ? 65535 : a.v[i]); });
    check<int8_t>("narrow 4 times 32", 4 * LANES, [&](int8_t* p) { store(p, narrow(x[0], x[1], x[2], x[3])); }, [&](int i) { return limit(a.v[i], 8); });
    check<int8_t>("set8", 4 * LANES, [&](int8_t* p) { store(p, set8(-3)); }, [&](int) { return -3; });
}

static void requantisation(bool narrow_ratios) {
    const Array<int32_t> a;
    Array<int32_t> m, s, b, m2;
    for (int i = 0; i < 80; ++i) {
        s.v[i] = int32_t(generator() % 63);
        if (i % 7 == 0) {  // results near the ends of 16 bits, where nothing may be clipped too early
            s.v[i] = 20 + int32_t(generator() % 30);
            m.v[i] = int32_t((int64_t(32767) << s.v[i]) / (a.v[i] == 0 ? 1 : int64_t(a.v[i]))) | 1;
        }
        if (narrow_ratios && s.v[i] < 33) {
            m.v[i] = s.v[i] < 3 ? 0 : int32_t(m.v[i] % ((int64_t(1) << (s.v[i] - 3)) + 1));
        }
        m2.v[i] >>= 2;
    }
    const I32 x = load32(a.v), multiplier = load32(m.v), shift = load32(s.v);
    const Requantizer r = requantizer(multiplier, shift);
    const auto scalar = [&](int i) { return requantize(a.v[i], m.v[i], s.v[i]); };
    check<int32_t>("requantize", LANES, [&](int32_t* p) { store(p, clip16(requantize(x, r))); }, [&](int i) { return limit(scalar(i), 16); });
    if (is_narrowing(m.v, s.v, LANES)) {
        check<int32_t>("requantize_exact", LANES, [&](int32_t* p) { store(p, requantize_exact(x, r)); }, scalar);
    } else {
        expect(!narrow_ratios, "is_narrowing");
    }
    for (int i = 0; i < 80; ++i) m.v[i] >>= 2;
    const Wide wide = multiply_wide(x, load32(m.v)) + multiply_wide(load32(b.v), load32(m2.v));
    check<int32_t>("round_shift16", LANES, [&](int32_t* p) { store(p, round_shift16(wide, round_shift_of(shift))); }, [&](int i) {
        return limit(intaglio::round_shift(int64_t(a.v[i]) * m.v[i] + int64_t(b.v[i]) * m2.v[i], s.v[i]), 16);
    });
}

static float random_scale(int low, int high) {  // 2^low to 2^high
    return std::ldexp(1.0f + float(generator() % 1000) / 1000, low + int(generator() % uint64_t(high - low)));
}

static void exponentials() {
    const auto constants = intaglio::exp_constants(random_scale(-27, 10));
    Array<int32_t> distances;
    for (int i = 0; i < 80; ++i) {  // most of them where the exponential is not 0
        if (i % 3 != 0) distances.v[i] = int32_t(generator() % (uint64_t(constants.limit) + 2));
    }
    const VectorExp exp(constants);
    check<int16_t>("VectorExp", 2 * LANES, [&](int16_t* p) { store(p, exp(load32(distances.v), load32(distances.v + LANES))); },
                   [&](int i) { return intaglio::exp(uint32_t(distances.v[i]), constants); });

    const Array<int32_t> x;
    uint8_t mask[80];
    for (uint8_t& kept : mask) kept = generator() % 3 != 0 ? uint8_t(1 + generator() % 255) : 0;
    const int n = 1 + int(generator() % (4 * LANES));
    for (const uint8_t* keep : {(const uint8_t*)nullptr, (const uint8_t*)mask}) {
        int32_t top = INT32_MIN, total = 0;
        for (int i = 0; i < n; ++i) top = (!keep || keep[i]) && x.v[i] > top ? x.v[i] : top;
        expect(row_largest(x.v, keep, n) == top, "row_largest");
        const auto one = [&](int i) {
            return i < n && (!keep || keep[i]) ? intaglio::exp(uint32_t(top) - uint32_t(x.v[i]), constants) : 0;
        };
        for (int i = 0; i < n; ++i) total += one(i);
        const int written = (n + 2 * LANES - 1) / (2 * LANES) * 2 * LANES;
        check<int16_t>("exp_row", written, [&](int16_t* p) { expect(exp_row(x.v, keep, n, top, exp, p) == total, "exp_row's sum"); }, one);
    }
}

static void every_gelu() {
    for (int i = 0; i < 40; ++i) {
        const auto constants = intaglio::gelu_constants(1, random_scale(-5, 9));
        const GeluVectors vectors = gelu_vectors(constants);
        for (int low = -32768; low < 32768; low += 2 * LANES) {
            Array<int16_t> v(false);
            for (int k = 0; k < 2 * LANES; ++k) v.v[k] = int16_t(low + k);
            check<int16_t>("gelu", 2 * LANES, [&](int16_t* p) { store(p, gelu(load16(v.v), vectors)); },
                           [&](int k) { return intaglio::gelu(low + k, constants); });
        }
    }
}

int main() {
    every_gelu();
    for (int round = 0; round < 5000 && failures == 0; ++round) {
        memory(int(generator() % (4 * LANES + 1)));
        if (round % 4 == 0) memory(LANES << round / 4 % 3);
        arithmetic32();
        arithmetic16();
        narrowing();
        exponentials();
        requantisation(round % 2 == 0);
    }
    return failures;
}
