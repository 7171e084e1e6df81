#include "plugins/packed_matmul/kernel.h"

#include "plugins/cpu/simd_float.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

constexpr int VECTORS = FLOATS == 16 ? 4 : 2, PANEL = VECTORS * FLOATS;  // as many sums of ROWS rows as there are registers
constexpr int ROWS = 6;
constexpr int64_t DEPTH = 256;  // of a block of a panel that stays in the second-level cache for all rows

struct Float16 {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

// The numbers of a panel at one depth, as vectors. Those of bfloat16 lie in pairs, the first half of a pair's columns in the
// low halves of 32 bits, so that a shift and a mask convert them.
INTAGLIO_FLOAT void load_depth(const float* p, F32 (&numbers)[VECTORS]) {
    for (int v = 0; v < VECTORS; ++v) numbers[v] = load_float(p + v * FLOATS);
}
INTAGLIO_FLOAT void load_depth(const Float16* p, F32 (&numbers)[VECTORS]) {
    for (int v = 0; v < VECTORS; ++v) numbers[v] = load_float16(&p[v * FLOATS].bits);
}
INTAGLIO_FLOAT void load_depth(const BFloat16* p, F32 (&numbers)[VECTORS]) {
    for (int v = 0; v < VECTORS; v += 2) {
        FloatBits pairs;
        __builtin_memcpy(&pairs, p + v * FLOATS, sizeof pairs);
        numbers[v] = F32(pairs << 16);
        numbers[v + 1] = F32(pairs & int32_t(0xffff0000));
    }
}

// Where column `column` of a panel lies at one depth.
template <typename T>
constexpr int64_t place(int64_t column) {
    return column;
}
template <>
constexpr int64_t place<BFloat16>(int64_t column) {
    const int64_t pair = column / (2 * FLOATS), of_pair = column % (2 * FLOATS);
    return pair * 2 * FLOATS + of_pair % FLOATS * 2 + of_pair / FLOATS;
}

template <typename T>
static void pack_as(const T* weight, int64_t begin, int64_t end, int64_t depth, int64_t columns, T* packed) {
    for (int64_t first = 0; first < columns; first += PANEL, packed += depth * PANEL) {
        const int64_t count = columns - first < PANEL ? columns - first : PANEL;
        for (int64_t k = begin; k < end; ++k) {
            const T* const from = weight + k * columns + first;
            T* const to = packed + k * PANEL;
            for (int64_t i = 0; i < PANEL; ++i) to[place<T>(i)] = i < count ? from[i] : T{};
        }
    }
}

template <typename T>
static void pack_transposed_as(const T* weight, int64_t begin, int64_t end, int64_t depth, T* packed) {
    for (int64_t first = begin; first < end; first += PANEL) {
        const int64_t count = end - first < PANEL ? end - first : PANEL;
        T* const to = packed + first * depth;
        for (int64_t i = 0; i < PANEL; ++i) {
            const T* const from = weight + (first + i) * depth;
            for (int64_t k = 0; k < depth; ++k) to[k * PANEL + place<T>(i)] = i < count ? from[k] : T{};
        }
    }
}

// --- a tile: COUNT rows times a panel -------------------------------------------------------------------------------

// Asks for what is read some microseconds later, into the second-level cache.
template <typename T>
INTAGLIO_FLOAT void look_ahead(const T* panel) {
    constexpr int64_t AHEAD = 8192, LINE = 64;
    constexpr int SECOND_LEVEL = 2;
    const char* const ahead = reinterpret_cast<const char*>(panel) + AHEAD;
    for (int64_t byte = 0; byte < PANEL * int64_t(sizeof(T)); byte += LINE) __builtin_prefetch(ahead + byte, 0, SECOND_LEVEL);
}

// Adds the products of `depth` numbers of COUNT rows, or begins with them; x, y: of the first row.
template <int COUNT, typename T>
static __attribute__((noinline)) void tile(const T* panel, int64_t depth, const float* x, int64_t x_stride, bool adds, float* y,
                                           int64_t y_stride) {
    // With vectors of 64 bytes the processor's own prefetching keeps up, and with one row that is hardly converted.
    constexpr bool ASKS = FLOATS < 16 && !(COUNT == 1 && sizeof(T) == sizeof(float));
    F32 sums[COUNT][VECTORS];
    for (int r = 0; r < COUNT; ++r) {
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = adds ? load_float(y + r * y_stride + v * FLOATS) : set_float(0);
    }
    for (int64_t k = 0; k < depth; ++k, panel += PANEL) {
        if constexpr (ASKS) look_ahead(panel);
        F32 numbers[VECTORS];
        load_depth(panel, numbers);
        for (int r = 0; r < COUNT; ++r) {
            const F32 value = set_float(x[r * x_stride + k]);
            for (int v = 0; v < VECTORS; ++v) sums[r][v] = multiply_add(value, numbers[v], sums[r][v]);
        }
    }
    for (int r = 0; r < COUNT; ++r) {
        for (int v = 0; v < VECTORS; ++v) store_float(y + r * y_stride + v * FLOATS, sums[r][v]);
    }
}

template <typename T>
static void any_tile(int64_t count, const T* panel, int64_t depth, const float* x, int64_t x_stride, bool adds, float* y,
                     int64_t y_stride) {
    switch (count) {
        case 1: return tile<1>(panel, depth, x, x_stride, adds, y, y_stride);
        case 2: return tile<2>(panel, depth, x, x_stride, adds, y, y_stride);
        case 3: return tile<3>(panel, depth, x, x_stride, adds, y, y_stride);
        case 4: return tile<4>(panel, depth, x, x_stride, adds, y, y_stride);
        case 5: return tile<5>(panel, depth, x, x_stride, adds, y, y_stride);
        default: return tile<ROWS>(panel, depth, x, x_stride, adds, y, y_stride);
    }
}

// The same for the last panel, of fewer columns.
template <typename T>
static void part_of_tile(int64_t count, const T* panel, int64_t depth, const float* x, int64_t x_stride, bool adds, float* y,
                         int64_t y_stride, int64_t columns) {
    float whole[ROWS * PANEL];
    for (int64_t r = 0; r < count; ++r) {
        for (int64_t i = 0; i < PANEL; ++i) whole[r * PANEL + i] = adds && i < columns ? y[r * y_stride + i] : 0;
    }
    any_tile(count, panel, depth, x, x_stride, adds, whole, PANEL);
    for (int64_t r = 0; r < count; ++r) {
        for (int64_t i = 0; i < columns; ++i) y[r * y_stride + i] = whole[r * PANEL + i];
    }
}

// --- rows times panels ----------------------------------------------------------------------------------------------

template <typename T>
static void multiply_tiles(const T* panel, int64_t depth, const float* x, int64_t x_stride, int64_t rows, bool adds, float* y,
                           int64_t y_stride, int64_t columns) {
    int64_t tiles = (rows + ROWS - 1) / ROWS;
    for (int64_t first = 0; first < rows; --tiles) {
        const int64_t count = (rows - first + tiles - 1) / tiles;
        const float* const from = x + first * x_stride;
        float* const to = y + first * y_stride;
        if (columns == PANEL) any_tile(count, panel, depth, from, x_stride, adds, to, y_stride);
        else part_of_tile(count, panel, depth, from, x_stride, adds, to, y_stride, columns);
        first += count;
    }
}

template <typename T>
static void multiply_as(const T* packed, int64_t begin, int64_t end, const float* x, int64_t rows, int64_t depth, int64_t columns,
                        float* y) {
    const int64_t of_block = rows > ROWS ? DEPTH : depth;
    for (int64_t k = 0; k < depth; k += of_block) {
        const int64_t block = depth - k < of_block ? depth - k : of_block;
        for (int64_t panel = begin; panel < end; ++panel) {
            const T* const from = packed + (panel * depth + k) * PANEL;
            const int64_t first = panel * PANEL, left = columns - first, count = left < PANEL ? left : PANEL;
            multiply_tiles(from, block, x + k, depth, rows, k > 0, y + first, columns, count);
        }
    }
}

// --- types ----------------------------------------------------------------------------------------------------------

// Calls as(a number of the type).
template <typename As>
static void dispatch(WeightType type, const As& as) {
    switch (type) {
        case WeightType::float32: return as(float{});
        case WeightType::float16: return as(Float16{});
        case WeightType::bfloat16: return as(BFloat16{});
    }
}

static void pack(WeightType type, const void* weight, int64_t begin, int64_t end, int64_t depth, int64_t columns, void* packed) {
    dispatch(type, [&](auto of) {
        using T = decltype(of);
        pack_as(static_cast<const T*>(weight), begin, end, depth, columns, static_cast<T*>(packed));
    });
}

static void pack_transposed(WeightType type, const void* weight, int64_t begin, int64_t end, int64_t depth, void* packed) {
    dispatch(type, [&](auto of) {
        using T = decltype(of);
        pack_transposed_as(static_cast<const T*>(weight), begin, end, depth, static_cast<T*>(packed));
    });
}

static void multiply(WeightType type, const void* packed, int64_t begin, int64_t end, const float* x, int64_t rows, int64_t depth,
                     int64_t columns, float* y) {
    dispatch(type, [&](auto of) {
        using T = decltype(of);
        multiply_as(static_cast<const T*>(packed), begin, end, x, rows, depth, columns, y);
    });
}

}  // namespace

const PackedMatMulKernel packed_matmul_kernel = {PANEL, pack, pack_transposed, multiply};

}  // namespace intaglio::INTAGLIO_ISA
