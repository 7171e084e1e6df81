// QuantizeCache: rows of float32 as slots of a quantised cache, each group of 32 channels by one thread.
#include "cuda/cache_slots.cuh"

namespace {

constexpr int THREADS = 128;
constexpr uint32_t NAN_SCALE = 0x7FC00000u;

struct Range {
    float least, greatest;
    bool finite;
    __device__ __forceinline__ float magnitude() const { return greatest > -least ? greatest : -least; }
};

__device__ __forceinline__ Range range_of(const float* x, int32_t count) {
    Range range = {x[0], x[0], true};
    for (int32_t i = 0; i < count; ++i) {
        range.least = x[i] < range.least ? x[i] : range.least;
        range.greatest = x[i] > range.greatest ? x[i] : range.greatest;
        range.finite = range.finite && x[i] - x[i] == 0;
    }
    return range;
}

// The bits of a scale: `wanted` rounded to 9 bits, halves up; NaN where the group is not finite.
__device__ __forceinline__ uint32_t scale_of(float wanted, bool finite) {
    const uint32_t bits = uint32_t(__float_as_int(wanted));
    return !finite ? NAN_SCALE : bits >> 23 == 0 ? 0 : (bits + (1u << 14)) >> 15 << 15;
}

__device__ __forceinline__ void store_scale(uint8_t* to, uint32_t bits) {
    to[0] = uint8_t(bits >> 23);
    to[1] = uint8_t(bits >> 15);
}

__device__ __forceinline__ int32_t code_of(float x, float scale, float zero) {
    const float code = rintf(x / scale) - zero;
    return int32_t(code < 0 ? 0 : code > 15 ? 15 : code);
}

template <int BITS>
__device__ __forceinline__ void fill_last_word(uint8_t* slot, int32_t depth) {
    for (int32_t i = slots::used_bytes<BITS>(depth); i < slots::bytes<BITS>(depth); ++i) slot[i] = 0;
}

// A thread's group: its row, the number of the group, its first channel and how many it has.
struct Place {
    int64_t row;
    int32_t group, first, count;
    __device__ __forceinline__ Place(int32_t depth) {
        const int64_t index = int64_t(blockIdx.x) * THREADS + threadIdx.x;
        row = index / slots::groups(depth);
        group = int32_t(index % slots::groups(depth));
        first = group * slots::GROUP;
        count = min(depth - first, slots::GROUP);
    }
};

}  // namespace

// x: float32 [rows, depth]; out: the bytes of a slot for each row. Grid: groups of all rows / 128, rounded up.
extern "C" __global__ void __launch_bounds__(THREADS) quantize_cache_8(const float* x, int32_t rows, int32_t depth, uint8_t* out) {
    const Place place(depth);
    if (place.row >= rows) return;
    const float* const from = x + place.row * depth + place.first;
    uint8_t* const slot = out + place.row * slots::bytes<8>(depth);
    if (place.group == 0) fill_last_word<8>(slot, depth);
    const Range range = range_of(from, place.count);
    const uint32_t bits = scale_of(range.magnitude() / float(127 * 127), range.finite);
    store_scale(slot + depth + 2 * place.group, bits);
    const bool usable = bits != 0 && bits != NAN_SCALE;
    const float scale = __int_as_float(int32_t(bits));
    for (int32_t i = 0; i < place.count; ++i) {
        const int32_t code = usable ? int32_t(rintf(sqrtf((from[i] < 0 ? -from[i] : from[i]) / scale))) : 0;
        slot[place.first + i] = uint8_t(from[i] < 0 ? -code : code);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) quantize_cache_4(const float* x, int32_t rows, int32_t depth, uint8_t* out) {
    const Place place(depth);
    if (place.row >= rows) return;
    const float* const from = x + place.row * depth + place.first;
    uint8_t* const slot = out + place.row * slots::bytes<4>(depth);
    constexpr int32_t HALF = slots::GROUP / 2;
    const int32_t groups = slots::groups(depth);
    if (place.group == 0) fill_last_word<4>(slot, depth);
    const Range range = range_of(from, place.count);
    const float step = (range.greatest - range.least) / 15, limit = range.magnitude() / 127, wanted = step > limit ? step : limit;
    const uint32_t bits = scale_of(wanted, range.finite && wanted - wanted == 0);
    store_scale(slot + groups * HALF + 2 * place.group, bits);
    const bool usable = bits != 0 && bits != NAN_SCALE;
    const float scale = __int_as_float(int32_t(bits));
    float zero = usable ? rintf(range.least / scale) : 0;
    zero = zero < -127 ? -127 : zero > 127 ? 127 : zero;
    slot[groups * (HALF + 2) + place.group] = uint8_t(int8_t(zero));
    for (int32_t i = 0; i < HALF; ++i) {
        const float low = from[i < place.count ? i : 0], high = from[i + HALF < place.count ? i + HALF : 0];
        slot[place.group * HALF + i] = usable ? uint8_t(code_of(low, scale, zero) | code_of(high, scale, zero) << 4) : 0;
    }
}
