#include "plugins/int_linear/kernel.h"

#include "plugins/cpu/int8/gemm.h"
#include "plugins/cpu/simd_gelu.h"

namespace intaglio::INTAGLIO_ISA {
namespace {

// How many columns of a panel there are: in its first and in its second vector.
struct Columns {
    int first, second;
};

// Whole vectors are by far the most frequent.
INTAGLIO_SIMD I32 take(const int32_t* p, int count) { return count == LANES ? load32(p) : load32(p, count); }
INTAGLIO_SIMD void put(int32_t* y, I32 v, int count) { count == LANES ? store(y, v) : store(y, v, count); }
INTAGLIO_SIMD void put(int8_t* y, I32 v, int count) {
    count == LANES ? store_saturated(y, v) : store_saturated(y, v, count);
}
INTAGLIO_SIMD I32 limited(I32 v, const int32_t*) { return clip16(v); }
INTAGLIO_SIMD I32 limited(I32 v, const int8_t*) { return v; }  // put does it

// The factors of a panel.
struct Factors {
    Requantizer first, second;
    bool narrowing;  // all of them, as nearly always, so that requantize_exact may be used
};

Factors panel_factors(const int32_t* multiplier, const int32_t* shift, Columns n) {
    const Requantizer first = requantizer(take(multiplier, n.first), take(shift, n.first));
    const Requantizer second = requantizer(take(multiplier + LANES, n.second), take(shift + LANES, n.second));
    return {first, second, largest(max(first.x_shift, second.x_shift)) == 0};
}

template <bool NARROWING>
INTAGLIO_SIMD I32 scaled(I32 x, const Requantizer& r) { return NARROWING ? requantize_exact(x, r) : requantize(x, r); }

// --- a tile's sums [rows, PANEL] into y, whose rows are `stride` apart ----------------------------------------------

void keep(const int32_t* sums, int64_t rows, Columns n, int32_t* y, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r, sums += PANEL, y += stride) {
        put(y, load32(sums), n.first);
        put(y + LANES, load32(sums + LANES), n.second);
    }
}

template <bool NARROWING, typename T>
void rescale(const int32_t* sums, int64_t rows, Columns n, const Factors& factors, T* y, int64_t stride) {
    const Requantizer first = factors.first, second = factors.second;
    for (int64_t r = 0; r < rows; ++r, sums += PANEL, y += stride) {
        put(y, limited(scaled<NARROWING>(load32(sums), first), y), n.first);
        put(y + LANES, limited(scaled<NARROWING>(load32(sums + LANES), second), y), n.second);
    }
}

template <typename T>
void rescale(const int32_t* sums, int64_t rows, Columns n, const Factors& factors, T* y, int64_t stride) {
    if (factors.narrowing) return rescale<true>(sums, rows, n, factors, y, stride);
    rescale<false>(sums, rows, n, factors, y, stride);
}

// i-GELU of the requantised sums, in their place.
template <bool NARROWING>
void activate(int32_t* sums, int64_t rows, const Factors& factors, const GeluVectors& constants) {
    const Requantizer first = factors.first, second = factors.second;
    for (int64_t r = 0; r < rows; ++r, sums += PANEL) {
        const I16 v = narrow(scaled<NARROWING>(load32(sums), first), scaled<NARROWING>(load32(sums + LANES), second));
        store(sums, gelu(v, constants));
    }
}

void activate(int32_t* sums, int64_t rows, const Factors& factors, const GeluVectors& constants) {
    if (factors.narrowing) return activate<true>(sums, rows, factors, constants);
    activate<false>(sums, rows, factors, constants);
}

// What i-GELU gave, requantised to 8 bits.
template <bool NARROWING>
void round_activated(const int32_t* curve, int64_t rows, Columns n, const Factors& out, I32 zero_point, int8_t* y, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r, curve += PANEL, y += stride) {
        put(y, clip16(scaled<NARROWING>(load32(curve), out.first)) + zero_point, n.first);
        put(y + LANES, clip16(scaled<NARROWING>(load32(curve + LANES), out.second)) + zero_point, n.second);
    }
}

// i-GELU of the requantised sums, requantised to 8 bits without leaving the registers.
template <bool NARROWING>
void activate_short(const int32_t* sums, int64_t rows, Columns n, const Factors& factors, const GeluVectors& constants,
                    const ShortFactors& first_out, const ShortFactors& second_out, I32 zero_point, int8_t* y, int64_t stride) {
    const Requantizer first = factors.first, second = factors.second;
    for (int64_t r = 0; r < rows; ++r, sums += PANEL, y += stride) {
        const I16 v = narrow(scaled<NARROWING>(load32(sums), first), scaled<NARROWING>(load32(sums + LANES), second));
        const I16 curve = gelu(v, constants);
        put(y, requantize(low32(curve), first_out) + zero_point, n.first);
        put(y + LANES, requantize(high32(curve), second_out) + zero_point, n.second);
    }
}

// The activated sums requantised to 8 bits, times the gate, requantised to 8 bits.
template <bool NARROWING>
void gate(const int32_t* sums, int64_t rows, Columns n, const Factors& out, const Factors& gated, const int32_t* gate,
          int8_t* y, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r, sums += PANEL, gate += stride, y += stride) {
        const I32 first = clip8(scaled<NARROWING>(load32(sums), out.first)) * clip16(take(gate, n.first));
        put(y, scaled<NARROWING>(first, gated.first), n.first);
        const I32 second = clip8(scaled<NARROWING>(load32(sums + LANES), out.second)) * clip16(take(gate + LANES, n.second));
        put(y + LANES, scaled<NARROWING>(second, gated.second), n.second);
    }
}

// The sums requantised to 16 bits, times `multiple`, added to the residual.
template <bool NARROWING>
void add(const int32_t* sums, int64_t rows, Columns n, const Factors& factors, I32 first_multiple, I32 second_multiple,
         const int32_t* residual, int32_t* y, int64_t stride) {
    for (int64_t r = 0; r < rows; ++r, sums += PANEL, residual += stride, y += stride) {
        const I32 first = clip16(scaled<NARROWING>(load32(sums), factors.first)) * first_multiple;
        put(y, take(residual, n.first) + first, n.first);
        const I32 second = clip16(scaled<NARROWING>(load32(sums + LANES), factors.second)) * second_multiple;
        put(y + LANES, take(residual + LANES, n.second) + second, n.second);
    }
}

// --- tasks ----------------------------------------------------------------------------------------------------------

// One task's rows of a panel; multiply(finish) computes its tiles and calls finish(sums, first row, rows) for each.
template <typename Multiply>
void finish_panel(const Multiply& multiply, const Epilogue& epilogue, int64_t column, int64_t columns, void* y) {
    const int64_t left = columns - column;
    const Columns n = {int(smaller(LANES, left)), int(smaller(LANES, left > LANES ? left - LANES : 0))};
    int32_t* const y32 = static_cast<int32_t*>(y) + column;
    int8_t* const y8 = static_cast<int8_t*>(y) + column;
    if (epilogue.bits == 32) {
        multiply([&](int32_t* sums, int64_t row, int64_t rows) { keep(sums, rows, n, y32 + row * columns, columns); });
        return;
    }
    const Factors factors = panel_factors(epilogue.multiplier + column, epilogue.shift + column, n);
    if (epilogue.gelu != nullptr) {
        const int32_t *out_multiplier = epilogue.out_multiplier + column, *out_shift = epilogue.out_shift + column;
        const GeluVectors constants = gelu_vectors(*epilogue.gelu);
        if (epilogue.gate != nullptr) {
            const Factors out = panel_factors(out_multiplier, out_shift, n);
            const Factors gated = panel_factors(epilogue.gate_multiplier + column, epilogue.gate_shift + column, n);
            const auto finish = out.narrowing && gated.narrowing ? gate<true> : gate<false>;
            multiply([&](int32_t* sums, int64_t row, int64_t rows) {
                activate(sums, rows, factors, constants);
                finish(sums, rows, n, out, gated, epilogue.gate + row * columns + column, y8 + row * columns, columns);
            });
            return;
        }
        const I32 zero_point = set32(epilogue.out_zero_point);
        if (is_short(out_multiplier, out_shift, smaller(PANEL, left))) {
            const ShortFactors first = short_factors(take(out_multiplier, n.first), take(out_shift, n.first));
            const ShortFactors second =
                short_factors(take(out_multiplier + LANES, n.second), take(out_shift + LANES, n.second));
            const auto activated = factors.narrowing ? activate_short<true> : activate_short<false>;
            multiply([&](int32_t* sums, int64_t row, int64_t rows) {
                activated(sums, rows, n, factors, constants, first, second, zero_point, y8 + row * columns, columns);
            });
            return;
        }
        const Factors out = panel_factors(out_multiplier, out_shift, n);
        const auto finish = out.narrowing ? round_activated<true> : round_activated<false>;
        multiply([&](int32_t* sums, int64_t row, int64_t rows) {
            activate(sums, rows, factors, constants);
            finish(sums, rows, n, out, zero_point, y8 + row * columns, columns);
        });
    } else if (epilogue.residual != nullptr) {
        const int32_t* const multiple = epilogue.multiple + column;
        const I32 first = take(multiple, n.first), second = take(multiple + LANES, n.second);
        const auto finish = factors.narrowing ? add<true> : add<false>;
        multiply([&](int32_t* sums, int64_t row, int64_t rows) {
            const int32_t* const residual = epilogue.residual + row * columns + column;
            finish(sums, rows, n, factors, first, second, residual, y32 + row * columns, columns);
        });
    } else if (epilogue.bits == 16) {
        multiply([&](int32_t* sums, int64_t row, int64_t rows) {
            rescale(sums, rows, n, factors, y32 + row * columns, columns);
        });
    } else {
        multiply([&](int32_t* sums, int64_t row, int64_t rows) {
            rescale(sums, rows, n, factors, y8 + row * columns, columns);
        });
    }
}

void run(const void* x, const void* weight, int64_t rows, int64_t depth, int64_t columns, const Epilogue& epilogue,
         void* y, int64_t begin, int64_t end) {
    const PackedMatrix matrix = packed_matrix(depth, columns, const_cast<void*>(weight));
    const Tasks tasks(rows, matrix);
    Multiplier multiplier;
    for (int64_t task = begin; task < end; ++task) {
        const int64_t panel = tasks.panel(task), column = panel * PANEL;
        const auto multiply = [&](const auto& finish) {
            multiply_panel(multiplier, static_cast<const int32_t*>(x), tasks.first_row(task), tasks.last_row(task), matrix,
                           panel, finish);
        };
        finish_panel(multiply, epilogue, column, columns, y);
    }
}

int64_t count_tasks(int64_t rows, int64_t depth, int64_t columns) {
    return Tasks(rows, packed_matrix(depth, columns, nullptr)).count();
}

void pack_weight(const int8_t* weight, const int32_t* bias, int64_t depth, int64_t columns, void* packed) {
    const PackedMatrix matrix = packed_matrix(depth, columns, packed);
    for (int64_t panel = 0; panel < matrix.panels; ++panel) pack_rows(matrix, panel, weight, columns);
    if (bias == nullptr) return;
    for (int64_t c = 0; c < columns; ++c) matrix.start[c] = int32_t(uint32_t(matrix.start[c]) + uint32_t(bias[c]));
}

void pack_x(const int8_t* x, int64_t first, int64_t last, int64_t depth, void* packed) {
    int32_t* const out = static_cast<int32_t*>(packed) + first * packed_stride(depth);
    pack_left(x + first * depth, depth, last - first, depth, out);
}

int64_t weight_bytes(int64_t depth, int64_t columns) { return packed_bytes(depth, columns); }
int64_t x_bytes(int64_t rows, int64_t depth) { return left_bytes(rows, depth); }

}  // namespace

const IntLinearKernel int_linear_kernel = {weight_bytes, pack_weight, x_bytes, pack_x, count_tasks, run};

}  // namespace intaglio::INTAGLIO_ISA
