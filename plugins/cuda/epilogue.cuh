// What becomes of the sums of a matrix product: a `factors(column)` that is loaded once for each column of a lane, and
// the function of a sum, those, and, where it reads another tensor, the position in the result, maybe behind its last row.
// A bias or factors may be one for all columns: `length` is then 1.
#pragma once

#include "cuda/rounding.cuh"
#include "integer_math.h"

namespace epilogue {

// Dyadic factors, per column or one for all.
struct Factors {
    const int32_t* __restrict__ multiplier;
    const int32_t* __restrict__ shift;
    int32_t multipliers, shifts;
};

template <class Factor = rounding::Factor>
__device__ __forceinline__ Factor factor_of(const Factors& factors, int32_t column) {
    return Factor(factors.multiplier[factors.multipliers == 1 ? 0 : column], factors.shift[factors.shifts == 1 ? 0 : column]);
}

// The bias of one column; none without a pointer.
__device__ __forceinline__ int32_t bias_of(const int32_t* __restrict__ bias, int32_t column) { return bias ? bias[column] : 0; }

struct Sum {
    const int32_t* bias;

    __device__ __forceinline__ int32_t factors(int32_t column) const { return bias_of(bias, column); }
    __device__ __forceinline__ int32_t operator()(int32_t sum, int32_t column_bias, int64_t = 0) const { return sum + column_bias; }
};

template <int BITS>
struct Requantize {
    const int32_t* bias;
    Factors scale;

    struct Column {
        int32_t bias;
        rounding::Factor scale;
    };
    __device__ __forceinline__ Column factors(int32_t column) const { return {bias_of(bias, column), factor_of(scale, column)}; }
    __device__ __forceinline__ int32_t operator()(int32_t sum, const Column& column, int64_t = 0) const {
        return BITS == 8 ? column.scale.clip8(sum + column.bias) : column.scale.clip16(sum + column.bias);
    }
};

// i-GELU of the sums at its inner scale. `out` holds factors for the columns, or is without pointers: then it is
// the constants' for all.
struct Gelu {
    const int32_t* bias;
    Factors scale;
    intaglio::GeluConstants constants;
    Factors out;
    int32_t zero_point;

    struct Column {
        int32_t bias;
        rounding::Factor scale;
        rounding::ShortFactor out;
    };
    __device__ __forceinline__ Column factors(int32_t column) const {
        const rounding::ShortFactor one(constants.out_multiplier, constants.out_shift);
        const auto to_8_bits = out.multiplier ? factor_of<rounding::ShortFactor>(out, column) : one;
        return {bias_of(bias, column), factor_of(scale, column), to_8_bits};
    }
    __device__ __forceinline__ int32_t operator()(int32_t sum, const Column& column, int64_t = 0) const {
        return column.out.clip8(intaglio::gelu(column.scale.clip16(sum + column.bias), constants), zero_point);
    }
};

// The activated sums times a gate of as many elements, to 8 bits.
struct Gated {
    Gelu activated;
    const int32_t* __restrict__ gate;
    Factors scale;
    int64_t elements;

    struct Column {
        Gelu::Column activated;
        rounding::Factor scale;
    };
    __device__ __forceinline__ Column factors(int32_t column) const {
        return {activated.factors(column), factor_of(scale, column)};
    }
    __device__ __forceinline__ int32_t operator()(int32_t sum, const Column& column, int64_t position) const {
        if (position >= elements) return 0;
        const int32_t limited = min(max(gate[position], -32768), 32767);
        return column.scale.clip8(activated(sum, column.activated, position) * limited);
    }
};

// The sums in 16 bits times `multiple`, added to a residual of as many elements, modulo 2^32.
struct Residual {
    Requantize<16> rounded;
    const int32_t* __restrict__ residual;
    const int32_t* __restrict__ multiple;
    int32_t multiples;
    int64_t elements;

    struct Column {
        Requantize<16>::Column rounded;
        int32_t multiple;
    };
    __device__ __forceinline__ Column factors(int32_t column) const {
        return {rounded.factors(column), multiple[multiples == 1 ? 0 : column]};
    }
    __device__ __forceinline__ int32_t operator()(int32_t sum, const Column& column, int64_t position) const {
        if (position >= elements) return 0;
        const int32_t units = rounded(sum, column.rounded, position) * column.multiple;
        return int32_t(uint32_t(residual[position]) + uint32_t(units));
    }
};

// Writes eight results that lie side by side, of which `count` exist; together where `whole`: to is aligned to 8 bytes.
template <class Out>
__device__ __forceinline__ void store_eight(Out* __restrict__ to, const int32_t (&results)[8], int32_t count, bool whole) {
    if (whole && count >= 8) {
        __align__(8) Out values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = Out(results[i]);
#pragma unroll
        for (int i = 0; i < int(sizeof(Out)); ++i)  // of 8 bytes each
            reinterpret_cast<uint2*>(to)[i] = reinterpret_cast<const uint2*>(values)[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (i < count) to[i] = Out(results[i]);
    }
}

}  // namespace epilogue
