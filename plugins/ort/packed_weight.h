// The inputs that the bindings of layers with packed weights, LutMatMul and GroupMatMul, both read and check; and how a
// weight is packed without being in memory twice.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "plugins/ort/operator.h"

namespace intaglio::ort {

constexpr int64_t LARGEST_K = 1 << 30;  // so that no packed size overflows 64 bits

// Rows of x that a piece of parallel work packs: some microseconds.
inline int64_t x_packing_grain(int64_t depth) { return std::max<int64_t>((32 << 10) / std::max<int64_t>(depth, 1), 1); }

struct PackedWeight {
    int64_t bits, depth, activation_bits;

    explicit PackedWeight(const Node& node)
        : bits(node.integer("bits")), depth(node.integer("K")), activation_bits(node.integer("activation_bits")) {
        if (depth < 0 || depth > LARGEST_K || depth % 32 != 0) {
            throw Error("K: " + std::to_string(depth) + ", expected a multiple of 32, at most 2^30");
        }
    }

    // N of packed [N, K·bits/32].
    int64_t rows(const Tensor& packed) const {
        const int64_t words = depth * bits / 32;
        if (packed.shape.rank() != 2 || packed.shape.axis(1) != words) {
            throw Error("packed: shape " + packed.shape.text() + ", expected [N, " + std::to_string(words) + "]");
        }
        return packed.shape.axis(0);
    }

    // [..., N] for x [..., K].
    Shape output_shape(const Tensor& x, int64_t rows) const {
        if (x.shape.rank() < 1 || x.shape.axis(-1) != depth) {
            throw Error("x: shape " + x.shape.text() + ", expected [..., " + std::to_string(depth) + "]");
        }
        Shape shape = x.shape;
        shape.set_axis(-1, rows);
        return shape;
    }
};

// Takes those pages of memory out of the process that lie in a mapped file unchanged: ONNX Runtime maps weights, and they
// are read from the file again if anything asks for them. The system says which pages these are (Linux: bit 61 of an entry
// of pagemap); where it does not, all stay.
inline void release_file_pages(const void* data, int64_t bytes) {
#if defined(__linux__)
    constexpr uint64_t OF_FILE = uint64_t(1) << 61;
    constexpr size_t ENTRIES = 512;
    const auto page = uintptr_t(sysconf(_SC_PAGESIZE));
    const uintptr_t start = (reinterpret_cast<uintptr_t>(data) + page - 1) / page;
    const uintptr_t stop = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) / page;
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    uint64_t entries[ENTRIES];
    for (uintptr_t first = start; first < stop;) {
        const size_t wanted = std::min<size_t>(stop - first, ENTRIES);
        const ssize_t got = pread(file, entries, wanted * sizeof(uint64_t), off_t(first * sizeof(uint64_t)));
        if (got < ssize_t(sizeof(uint64_t))) break;
        const size_t count = size_t(got) / sizeof(uint64_t);
        for (size_t begin = 0, end = 0; begin < count; begin = end + 1) {
            for (end = begin; end < count && (entries[end] & OF_FILE);) ++end;
            if (end > begin) madvise(reinterpret_cast<void*>((first + begin) * page), (end - begin) * page, MADV_DONTNEED);
        }
        first += count;
    }
    close(file);
#else
    (void)data, (void)bytes;
#endif
}

// Calls pack(begin, end) on the tiles of `tile` rows of weight [rows, columns], some at a time, and releases what was read.
// `item`: bytes of a number.
template <typename Pack>
void pack_in_pieces(const Tensor& weight, int64_t item, int64_t tile, const Pack& pack) {
    constexpr int64_t PIECE = 4 << 20;  // bytes: few calls of the system, and little that is there twice
    const int64_t rows = weight.shape.axis(0), row_bytes = weight.shape.axis(1) * item;
    const int64_t tiles = (rows + tile - 1) / tile, step = PIECE / std::max<int64_t>(tile * row_bytes, 1) + 1;
    for (int64_t begin = 0; begin < tiles; begin += step) {
        const int64_t end = std::min(begin + step, tiles), first = begin * tile, last = std::min(end * tile, rows);
        pack(begin, end);
        release_file_pages(static_cast<const char*>(weight.data) + first * row_bytes, (last - first) * row_bytes);
    }
}

}  // namespace intaglio::ort
