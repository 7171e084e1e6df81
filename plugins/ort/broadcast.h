// Where the rows of a tensor lie that is broadcast to a larger shape.
#pragma once

#include <algorithm>
#include <utility>

#include "plugins/ort/operator.h"

namespace intaglio::ort {

// A row runs along the last axis of the shape.
class BroadcastRows {
public:
    // `operand` has to broadcast to `shape` by NumPy's rules; throws Error where it does not.
    BroadcastRows(const char* name, const Shape& operand, const Shape& shape) : shape_(shape) {
        bool fits = operand.rank() <= shape.rank();
        int64_t stride = 1;
        for (int i = 1; fits && i <= int(operand.rank()); ++i) {
            const int64_t length = operand.axis(-i);
            fits = length == 1 || length == shape.axis(-i);
            if (length != 1) strides_[shape.rank() - size_t(i)] = stride;
            stride = checked_product(stride, length);
        }
        if (!fits) throw Error(std::string(name) + ": shape " + operand.text() + " does not broadcast to " + shape.text());
    }

    // The number of the element that a row begins with.
    int64_t start(int64_t row) const {
        int64_t result = 0;
        for (int axis = int(shape_.rank()) - 2; axis >= 0; --axis) {
            result += row % shape_.axis(axis) * strides_[axis];
            row /= shape_.axis(axis);
        }
        return result;
    }

    // Rows lie `stride()` elements apart within each `run()` rows, counted from 0.
    int64_t run() const { return leading().first; }
    int64_t stride() const { return leading().second; }

    // From one entry of a row to the next: 1, or 0 where one stands for all.
    int64_t step() const { return shape_.rank() == 0 ? 0 : strides_[shape_.rank() - 1]; }

private:
    // The leading axes, from the last on, that are one axis as to where their rows lie: their length and stride.
    std::pair<int64_t, int64_t> leading() const {
        int64_t run = 1, stride = 0;
        for (int axis = int(shape_.rank()) - 2; axis >= 0; --axis) {
            const int64_t length = shape_.axis(axis);
            if (length == 1) continue;
            if (run == 1) stride = strides_[axis];
            if (strides_[axis] != stride * run) break;
            run *= length;
        }
        return {std::max<int64_t>(run, 1), stride};
    }

    Shape shape_;
    int64_t strides_[Shape::MAXIMUM_RANK] = {};
};

}  // namespace intaglio::ort
