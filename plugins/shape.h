// Shapes of tensors, and products of their lengths: one that leaves 64 bits is an Error, never a small number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "plugins/error.h"

namespace intaglio {

// The lengths of a tensor's axes.
class Shape {
public:
    static constexpr size_t MAXIMUM_RANK = 8;

    Shape() = default;
    Shape(std::initializer_list<int64_t> axes);
    void resize(size_t rank);  // throws Error above MAXIMUM_RANK; new axes are 1

    size_t rank() const { return rank_; }
    int64_t* data() { return axes_; }
    const int64_t* data() const { return axes_; }
    // axis(-1) is the last one; throws Error where there is none.
    int64_t axis(int index) const;
    void set_axis(int index, int64_t length);
    // Throw Error where they leave 64 bits, which only a shape without elements can do.
    int64_t elements() const;  // 1 for a scalar
    int64_t rows() const;      // elements / last axis: of [2, 3, C] it is 6, also where C is 0
    std::string text() const;  // "[2, 3]"

    bool operator==(const Shape& other) const;
    bool operator!=(const Shape& other) const { return !(*this == other); }

private:
    size_t rank_ = 0;
    int64_t axes_[MAXIMUM_RANK] = {};
};

// The shape that both broadcast to by NumPy's rules; throws Error where they do not.
Shape broadcast(const Shape& a, const Shape& b);

// a times b elements. Throws Error where that leaves 64 bits.
int64_t checked_product(int64_t a, int64_t b);

}  // namespace intaglio
