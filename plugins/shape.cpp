#include "plugins/shape.h"

#include <algorithm>

namespace intaglio {

Shape::Shape(std::initializer_list<int64_t> axes) {
    resize(axes.size());
    std::copy(axes.begin(), axes.end(), axes_);
}

void Shape::resize(size_t rank) {
    if (rank > MAXIMUM_RANK) {
        throw Error("a tensor of " + std::to_string(rank) + " axes, expected at most " + std::to_string(MAXIMUM_RANK));
    }
    for (size_t i = rank_; i < rank; ++i) axes_[i] = 1;
    rank_ = rank;
}

int64_t Shape::axis(int index) const {
    const int position = index < 0 ? index + int(rank_) : index;
    if (position < 0 || position >= int(rank_)) {
        throw Error("shape " + text() + " has no axis " + std::to_string(index));
    }
    return axes_[position];
}

void Shape::set_axis(int index, int64_t length) {
    axis(index);
    axes_[index < 0 ? index + int(rank_) : index] = length;
}

static int64_t product_of(const int64_t* axes, size_t count) {
    if (std::find(axes, axes + count, 0) != axes + count) return 0;
    int64_t product = 1;
    for (size_t i = 0; i < count; ++i) product = checked_product(product, axes[i]);
    return product;
}

int64_t Shape::elements() const { return product_of(axes_, rank_); }
int64_t Shape::rows() const { return product_of(axes_, rank_ > 0 ? rank_ - 1 : 0); }

std::string Shape::text() const {
    std::string text = "[";
    for (size_t i = 0; i < rank_; ++i) text += (i > 0 ? ", " : "") + std::to_string(axes_[i]);
    return text + "]";
}

bool Shape::operator==(const Shape& other) const {
    return rank_ == other.rank_ && std::equal(axes_, axes_ + rank_, other.axes_);
}

Shape broadcast(const Shape& a, const Shape& b) {
    Shape result;
    result.resize(std::max(a.rank(), b.rank()));
    for (size_t i = 1; i <= result.rank(); ++i) {
        const int64_t length_a = i <= a.rank() ? a.axis(-int(i)) : 1;
        const int64_t length_b = i <= b.rank() ? b.axis(-int(i)) : 1;
        if (length_a != length_b && length_a != 1 && length_b != 1) {
            throw Error("shapes " + a.text() + " and " + b.text() + " do not broadcast");
        }
        result.set_axis(-int(i), length_a == 1 ? length_b : length_a);
    }
    return result;
}

int64_t checked_product(int64_t a, int64_t b) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) {
        throw Error(std::to_string(a) + " times " + std::to_string(b) + " elements, expected less than 2^63");
    }
    return product;
}

}  // namespace intaglio
