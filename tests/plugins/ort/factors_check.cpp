// Scales of groups as plugins/group_matmul/group_factors.h keeps them: the form that is expected, and every number unchanged.
// Prints what differs; the exit status is the number of differences.
#include "plugins/group_matmul/group_factors.h"

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

using namespace intaglio;
using namespace intaglio::INTAGLIO_ISA;

static std::mt19937 generator(1);
static int failures = 0;

static float any() {
    uint32_t bits;
    float value;
    do {
        bits = generator();
        std::memcpy(&value, &bits, sizeof value);
    } while (!(value - value == 0));
    return value;
}

// A number that float16 has.
static float half() {
    const float value = generator() % 4 == 0 ? float(1 + generator() % 1023) / float(1 << 24)
                                             : float(1024 + generator() % 1024) / float(1 << (9 + generator() % 14));
    return generator() % 2 ? -value : value;
}

static void check(const char* what, const std::vector<float>& numbers, int64_t rows, int64_t groups, int64_t group_size, Kept kept) {
    // rows of the table follow each other, then groups
    const FactorForm form = factor_form(numbers.data(), groups, 1, rows, groups, group_size);
    std::vector<float> transposed(numbers.size());
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t group = 0; group < groups; ++group) transposed[group * rows + row] = numbers[row * groups + group];
    const FactorForm other = factor_form(transposed.data(), 1, rows, rows, groups, group_size);
    if (form.kept != kept || other.kept != kept || form.shift != other.shift) {
        std::printf("%s: kept as %d and %d, expected %d\n", what, form.kept, other.kept, kept);
        ++failures;
        return;
    }
    const int64_t tiles = (rows + FACTOR_ROWS - 1) / FACTOR_ROWS;
    const FactorLayout layout(form, tiles, groups, 64);
    std::vector<uint8_t> memory(size_t(layout.end));
    for (int64_t row = 0; row < tiles * FACTOR_ROWS; ++row) {
        const auto get = [&](int64_t group) { return row < rows ? numbers[row * groups + group] : 0; };
        pack_factors(form, layout, memory.data(), row / FACTOR_ROWS, groups, row % FACTOR_ROWS, get);
    }
    for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t group = 0; group < groups; ++group) {
            Factors factors = factors_of_tile(form, layout, memory.data(), tile, groups);
            const int64_t begin = group / 3 * 3;  // the stretch that a kernel would go on to
            for (int64_t row = 0; row < FACTOR_ROWS; row += FLOATS) {
                Factors here = factors;
                here.advance(begin, row);
                float found[FLOATS];
                store_float(found, load_factors(here, group - begin, 0));
                for (int64_t lane = 0; lane < FLOATS; ++lane) {
                    const int64_t n = tile * FACTOR_ROWS + row + lane;
                    const float expected = n < rows ? numbers[n * groups + group] : 0;
                    if (found[lane] == expected) continue;
                    std::printf("%s: %g at row %ld, group %ld, expected %g\n", what, double(found[lane]), long(n), long(group), double(expected));
                    ++failures;
                    return;
                }
            }
        }
    }
}

int main() {
    for (int round = 0; round < 300 && failures == 0; ++round) {
        const int64_t rows = 1 + generator() % 150, size = 16 << generator() % 5, span = 256 / size, groups = span * (1 + generator() % 3);
        std::vector<float> numbers(size_t(rows * groups));
        for (float& each : numbers) each = any();
        check("any numbers", numbers, rows, groups, size, FLOATS_KEPT);
        for (float& each : numbers) each = generator() % 9 ? half() : 0;
        // A row of them may be products by chance where few numbers share a factor.
        if (span == 1 || span >= 8) check("float16", numbers, rows, groups, size, HALVES_KEPT);
        if (span == 1) continue;
        for (int64_t row = 0; row < rows; ++row) {
            for (int64_t group = 0; group < groups; group += span) {
                const float factor = round % 2 ? half() : half() / float(1 << 25);  // also ones that float16 has not
                for (int64_t i = 0; i < span; ++i) numbers[row * groups + group + i] = factor * float(int(generator() % 256) - 128);
            }
        }
        check("products", numbers, rows, groups, size, round % 2 ? HALF_PRODUCTS_KEPT : PRODUCTS_KEPT);
        numbers[generator() % numbers.size()] = 0.1f;  // a damaged number is no product, and no float16
        if (span >= 8) check("products but for one", numbers, rows, groups, size, FLOATS_KEPT);
    }
    std::vector<float> zeros(64);
    check("zeros", zeros, 4, 16, 16, HALF_PRODUCTS_KEPT);
    check("float16's largest and smallest", {65504.0f, -65504.0f, 0x1p-24f, -0x1p-24f}, 4, 1, 256, HALVES_KEPT);
    check("float16's denormals", {0x1p-14f, 0x1.ff8p-15f, -0x1.8p-23f, 0x1p-15f}, 4, 1, 256, HALVES_KEPT);
    check("between float16's denormals", {0x1.002p-15f, 1, 1, 1}, 4, 1, 256, FLOATS_KEPT);
    check("below float16's smallest", {0x1p-25f, 1, 1, 1}, 4, 1, 256, FLOATS_KEPT);
    check("beyond float16's largest", {65536.0f, 1, 1, 1}, 4, 1, 256, FLOATS_KEPT);
    check("128 times on one side", {-128 * 0x1.8p-9f, 127 * 0x1.8p-9f, 3 * 0x1.8p-9f, 0}, 1, 4, 64, HALF_PRODUCTS_KEPT);
    check("128 times on the other", {128 * 0x1.8p-9f, -127 * 0x1.8p-9f, 3 * 0x1.8p-9f, 0}, 1, 4, 64, HALF_PRODUCTS_KEPT);
    check("128 times on both sides", {128 * 0x1.002p-9f, -128 * 0x1.002p-9f, 0x1.002p-9f, 0}, 1, 4, 64, FLOATS_KEPT);
    const float infinity = __builtin_inff(), none = __builtin_nanf("");
    float factor;
    if (common_factor(&infinity, 1, 1, false, &factor) || common_factor(&none, 1, 1, true, &factor)) ++failures;
    return failures;
}
