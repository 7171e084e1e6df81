// Weighted k-means on a line by dynamic programming (Wu 1991; Grønlund et al. 2017, arXiv:1701.07204).
//
// In sorted order clusters are intervals. With W and S the prefix sums of the weights and of weight·value, an interval
// (t, i] explains gain(t, i) = (S[i] - S[t])² / (W[i] - W[t]) of the sum of weight·value², so the best clustering is
//
//     D[j][i] = max over t < i of D[j-1][t] + gain(t, i).
//
// The best t, `cut`, rises with i and with j, so most of them need not be looked at: rows i are solved at strides that
// are halved, each between the cuts of its neighbours; at last the LANES - 1 rows between two solved ones together, one
// in each lane.

#include "plugins/native/clustering/kernel.h"

#include <cstring>

namespace intaglio::INTAGLIO_ISA {
namespace {

#if defined(__AVX512F__)
#define VECTOR 64  // bytes
#elif defined(__AVX__)
#define VECTOR 32
#else
#define VECTOR 16
#endif

constexpr int LANES = VECTOR / int(sizeof(double));
// Doubles, also for places: comparisons of 64-bit integers are slow before AVX-512. `Mask` is what comparing them gives.
typedef double Lanes __attribute__((vector_size(VECTOR)));
typedef int64_t Mask __attribute__((vector_size(VECTOR)));

constexpr int DIGIT = 11;  // bits of a key that one pass of the radix sort looks at
constexpr double NEGLIGIBLE = 1.0 / (1LL << 50);  // part of all weight that prefix sums would lose in rounding

typedef double Unaligned __attribute__((vector_size(VECTOR), aligned(8), may_alias));

inline Lanes load(const double* p) { return *reinterpret_cast<const Unaligned*>(p); }
inline Lanes all(double value) { return value - Lanes{}; }

// first, first + 1, ...
inline Lanes places_from(int64_t first) {
    Lanes places;
    for (int lane = 0; lane < LANES; ++lane) places[lane] = double(first + lane);
    return places;
}

// --- the values in order ---------------------------------------------------------------------------------------------

// An unsigned number that orders as the float does.
inline uint32_t key_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Item {
    uint32_t key;
    int32_t index;
};

// Sorts `items` by key, with as much room in `other`; returns where the sorted ones are.
const Item* radix_sort(Item* items, Item* other, int64_t n) {
    for (int shift = 0; shift < 32; shift += DIGIT) {
        int64_t places[(1 << DIGIT) + 1] = {};
        const uint32_t mask = (1u << DIGIT) - 1;
        for (int64_t i = 0; i < n; ++i) ++places[(items[i].key >> shift & mask) + 1];
        for (int digit = 0; digit < (1 << DIGIT); ++digit) places[digit + 1] += places[digit];
        for (int64_t i = 0; i < n; ++i) other[places[items[i].key >> shift & mask]++] = items[i];
        Item* const sorted = other;
        other = items;
        items = sorted;
    }
    return items;
}

// --- the workspace ---------------------------------------------------------------------------------------------------

inline int64_t padded(int64_t n) { return (n + 1 + 2 * LANES) / LANES * LANES; }  // lanes may read over the end

// What one row works with. Index i of the prefix sums stands for the first i of the distinct values.
struct Workspace {
    double* weight;    // [padded(n)] W
    double* moment;    // [padded(n)] S
    double* best;      // [padded(n)] D of the layer before
    double* next;      // [padded(n)] D of this layer
    Item* items;       // [n], and as many of `other`
    Item* other;
    int32_t* cuts;     // [k, padded(n)] the best t of each layer

    Workspace(void* memory, int64_t n) {
        weight = static_cast<double*>(memory);
        moment = weight + padded(n);
        best = moment + padded(n);
        next = best + padded(n);
        items = reinterpret_cast<Item*>(next + padded(n));
        other = items + n;
        cuts = reinterpret_cast<int32_t*>(other + n);
    }
};

int64_t workspace_bytes(int64_t n, int64_t k) {
    return padded(n) * int64_t(4 * sizeof(double) + k * sizeof(int32_t)) + 2 * n * int64_t(sizeof(Item));
}

// Fills in the prefix sums of the distinct values that weigh anything, centred on `centre`; returns their number.
int64_t prefix_sums(const float* values, const float* weights, int64_t n, const Workspace& work, double* centre) {
    double total = 0, sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        total += double(weights[i]);
        sum += double(weights[i]) * double(values[i]);
    }
    const bool unweighted = !(total > 0);
    if (unweighted) {
        total = double(n);
        sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += double(values[i]);
    }
    *centre = sum / total;
    int64_t kept = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (unweighted || double(weights[i]) > total * NEGLIGIBLE) {
            work.items[kept++] = {key_of(values[i] + 0.0f), int32_t(i)};  // + 0: -0 and 0 get the same key
        }
    }
    const Item* sorted = radix_sort(work.items, work.other, kept);
    int64_t distinct = 0;
    work.weight[0] = work.moment[0] = 0;
    for (int64_t i = 0; i < kept; ++i) {
        const double weight = unweighted ? 1.0 : double(weights[sorted[i].index]);
        const double value = double(values[sorted[i].index]) - *centre;
        if (i == 0 || sorted[i].key != sorted[i - 1].key) {
            ++distinct;
            work.weight[distinct] = work.weight[distinct - 1];
            work.moment[distinct] = work.moment[distinct - 1];
        }
        work.weight[distinct] += weight;
        work.moment[distinct] += weight * value;
    }
    for (int64_t i = distinct + 1; i < padded(n); ++i) work.weight[i] = work.moment[i] = work.best[i] = work.next[i] = 0;
    return distinct;
}

// --- one layer -------------------------------------------------------------------------------------------------------

inline double gain(const Workspace& work, int64_t t, int64_t i) {
    const double moment = work.moment[i] - work.moment[t];
    return moment * moment / (work.weight[i] - work.weight[t]);
}

// D[j][i] with the t of low <= t <= high < i; the cut is the lowest of the best ones.
inline void solve_row(const Workspace& work, int64_t i, int64_t low, int64_t high, double* value, int32_t* cut) {
    const Lanes moment_i = all(work.moment[i]), weight_i = all(work.weight[i]), last = all(double(high));
    Lanes place = places_from(low);
    Lanes best = all(-__builtin_huge_val()), best_place = place;
    for (int64_t t = low; t <= high; t += LANES) {
        const Lanes moment = moment_i - load(work.moment + t), weight = weight_i - load(work.weight + t);
        const Lanes score = load(work.best + t) + moment * moment / weight;
        const Mask better = (score > best) & (place <= last);
        best = better ? score : best;
        best_place = better ? place : best_place;
        place += double(LANES);
    }
    int lane = 0;
    for (int other = 1; other < LANES; ++other) {
        const bool lower = best[other] == best[lane] && best_place[other] < best_place[lane];
        if (best[other] > best[lane] || lower) lane = other;
    }
    *value = best[lane];
    *cut = int32_t(best_place[lane]);
}

// The rows first <= i < first + LANES together; their cuts lie from `low` to `high`.
inline void solve_rows(const Workspace& work, int64_t first, int64_t low, int64_t high, double* value, int32_t* cut) {
    const Lanes moment_i = load(work.moment + first), weight_i = load(work.weight + first), row = places_from(first);
    Lanes best = all(-__builtin_huge_val()), best_place = all(double(low));
    for (int64_t t = low; t <= high; ++t) {
        const Lanes moment = moment_i - work.moment[t], weight = weight_i - work.weight[t];
        const Lanes score = work.best[t] + moment * moment / weight;
        const Mask better = (score > best) & (row > double(t));
        best = better ? score : best;
        best_place = better ? all(double(t)) : best_place;
    }
    for (int lane = 0; lane < LANES; ++lane) {
        value[lane] = best[lane];
        cut[lane] = int32_t(best_place[lane]);
    }
}

// D[j] of all rows 1 <= i <= n in `next`, and their cuts. `before`: the cuts of the layer before, or null.
void solve_layer(const Workspace& work, int64_t n, const int32_t* before, int32_t* cuts) {
    work.next[0] = -__builtin_huge_val();  // no cluster is empty; so come the rows below j to -infinity by themselves
    cuts[0] = 0;
    int64_t stride = LANES;
    while (stride * 2 <= n) stride *= 2;
    for (; stride >= LANES; stride /= 2) {
        for (int64_t i = stride; i <= n; i += 2 * stride) {
            const int64_t high = i + stride <= n && cuts[i + stride] < i ? cuts[i + stride] : i - 1;
            int64_t low = before[i] > cuts[i - stride] ? before[i] : cuts[i - stride];
            if (low > high) low = high;  // rounding has told two equal cuts apart
            solve_row(work, i, low, high, work.next + i, cuts + i);
        }
    }
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t below = n - i < LANES ? n - i : LANES - 1;  // rows i + 1 to i + below
        int64_t high = i + LANES <= n ? cuts[i + LANES] : i + below - 1;
        if (high > i + below - 1) high = i + below - 1;
        int64_t low = before[i + 1] > cuts[i] ? before[i + 1] : cuts[i];
        if (low > i) low = i;  // every row has a t below it
        double value[LANES];
        int32_t cut[LANES];
        solve_rows(work, i + 1, low, high > low ? high : low, value, cut);
        for (int64_t row = 0; row < below; ++row) {
            work.next[i + 1 + row] = value[row];
            cuts[i + 1 + row] = cut[row];
        }
    }
}

// --- what the table points to ----------------------------------------------------------------------------------------

void cluster(const float* values, const float* weights, int64_t n, int64_t k, void* memory, float* centroids,
             double* masses) {
    Workspace work(memory, n);
    double centre;
    const int64_t distinct = prefix_sums(values, weights, n, work, &centre);
    const int64_t clusters = distinct < k ? distinct : k;
    const int64_t width = padded(n);
    int64_t end = distinct;
    if (clusters < k) {
        for (int64_t j = 0; j < k; ++j) {  // every value is a centroid
            const int64_t i = j < clusters ? j + 1 : clusters;
            masses[j] = j < clusters ? work.weight[i] - work.weight[i - 1] : 0;
            centroids[j] = float(centre + (work.moment[i] - work.moment[i - 1]) / (work.weight[i] - work.weight[i - 1]));
        }
        return;
    }
    for (int64_t i = 1; i <= distinct; ++i) work.best[i] = gain(work, 0, i);
    work.best[0] = -__builtin_huge_val();
    for (int64_t i = 0; i <= distinct; ++i) work.cuts[i] = 0;
    for (int64_t j = 1; j < k - 1; ++j) {
        solve_layer(work, distinct, work.cuts + (j - 1) * width, work.cuts + j * width);
        double* const solved = work.next;
        work.next = work.best;
        work.best = solved;
    }
    for (int64_t j = k - 1; j >= 0; --j) {
        int32_t cut = 0;
        double value;
        if (j == k - 1 && j > 0) solve_row(work, end, work.cuts[(j - 1) * width + end], end - 1, &value, &cut);
        else cut = work.cuts[j * width + end];
        masses[j] = work.weight[end] - work.weight[cut];
        centroids[j] = float(centre + (work.moment[end] - work.moment[cut]) / masses[j]);
        end = cut;
    }
}

// The float before a finite one. The C library's function would be a symbol that kernels do not have.
float next_below(float value) {
    if (value == 0) return -__FLT_DENORM_MIN__;
    int32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    bits += value > 0 ? -1 : 1;
    __builtin_memcpy(&value, &bits, sizeof bits);
    return value;
}

constexpr int BLOCK = 64;  // values whose indices are counted in registers

void assign(const float* values, int64_t n, const float* centroids, int64_t k, uint8_t* indices) {
    float middles[256];  // the largest floats that are not above them: a float is above both or neither
    for (int64_t j = 0; j + 1 < k; ++j) {
        const double middle = (double(centroids[j]) + double(centroids[j + 1])) / 2;
        middles[j] = float(middle);
        if (double(middles[j]) > middle) middles[j] = next_below(middles[j]);
    }
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        int32_t above[BLOCK] = {};
        for (int64_t j = 0; j + 1 < k; ++j) {
            for (int lane = 0; lane < BLOCK; ++lane) above[lane] += values[i + lane] > middles[j];
        }
        for (int lane = 0; lane < BLOCK; ++lane) indices[i + lane] = uint8_t(above[lane]);
    }
    for (; i < n; ++i) {
        int32_t above = 0;
        for (int64_t j = 0; j + 1 < k; ++j) above += values[i] > middles[j];
        indices[i] = uint8_t(above);
    }
}

}  // namespace

const ClusteringKernel clustering_kernel = {workspace_bytes, cluster, assign};

}  // namespace intaglio::INTAGLIO_ISA
