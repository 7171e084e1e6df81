#include "plugins/cuda/launching/launch_program.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace intaglio::cuda {
namespace {

constexpr int64_t LARGEST_GRID[] = {INT32_MAX, 65535, 65535};
constexpr int64_t MOST_THREADS = 1024;
constexpr size_t GRID_AND_SHARED = 4;

// How many numbers a step takes from the stack.
size_t taken(int64_t step) { return step < ADD ? 0 : step >= REQUIRE ? 1 : 2; }

[[noreturn]] void damaged() { throw Error("launch: no numbers that this version of intaglio writes. Build it again."); }

// Lengths that are known.
struct Numbers {
    const std::vector<const Shape*>& inputs;

    int64_t number(int64_t value) const { return value; }
    int64_t length(size_t input, int axis) const { return inputs[input]->axis(axis); }
    int64_t combine(Step step, int64_t a, int64_t b) const {
        int64_t result = 0;
        bool overflows = false;
        switch (step) {
            case ADD: overflows = __builtin_add_overflow(a, b, &result); break;
            case SUBTRACT: overflows = __builtin_sub_overflow(a, b, &result); break;
            case MULTIPLY: overflows = __builtin_mul_overflow(a, b, &result); break;
            case DIVIDE:
                if (b <= 0) damaged();
                result = a / b - (a % b < 0 ? 1 : 0);
                break;
            case EQUAL: result = a == b; break;
            default: result = a < b; break;
        }
        if (overflows) throw Error("a length of more than 64 bits");
        return result;
    }
    void require(Step step, size_t input, int axis, int64_t expected) const {
        const int64_t found = length(input, axis);
        if (found == expected || (step == REQUIRE_OR_ONE && found == 1)) return;
        throw Error("input " + std::to_string(input) + ": shape " + inputs[input]->text() + ", expected " +
                    std::to_string(expected) + (step == REQUIRE ? "" : " or 1") + " for axis " + std::to_string(axis));
    }
};

int64_t in_range(int64_t value, int64_t low, int64_t high, const char* what) {
    if (value < low || value > high) {
        throw Error(std::string(what) + ": " + std::to_string(value) + ", expected " + std::to_string(low) + " to " +
                    std::to_string(high) + ". Reduce the batch or the sequence");
    }
    return value;
}

}  // namespace

LaunchProgram::LaunchProgram(std::vector<int64_t> numbers, size_t outputs) : numbers_(std::move(numbers)) {
    const auto next = [&] {
        if (begin_ >= numbers_.size()) damaged();
        return numbers_[begin_++];
    };
    const auto ranks = [&](std::vector<int64_t>& found, int64_t least) {
        const int64_t count = next();
        if (count < 0 || count > int64_t(numbers_.size())) damaged();
        for (int64_t i = 0; i < count; ++i) {
            found.push_back(next());
            if (found.back() < least || found.back() > int64_t(Shape::MAXIMUM_RANK)) damaged();
        }
    };
    int64_t threads = 1;
    for (uint32_t& length : block_) {
        const int64_t value = next();
        if (value < 1 || value > MOST_THREADS) damaged();
        length = uint32_t(value);
        threads *= value;
    }
    ranks(ranks_, -1);
    ranks(output_ranks_, 0);
    if (threads > MOST_THREADS || output_ranks_.size() != outputs) damaged();
    check_program();
}

void LaunchProgram::check_program() {
    const auto lengths = size_t(std::accumulate(output_ranks_.begin(), output_ranks_.end(), int64_t(0)));
    size_t depth = 0;
    outputs_end_ = begin_;
    for (size_t i = begin_; i < numbers_.size();) {
        const int64_t step = numbers_[i++];
        if (step < NUMBER || step > REQUIRE_OR_ONE || operands(step) > numbers_.size() - i || taken(step) > depth) damaged();
        if (operands(step) == 2) {
            const int64_t input = numbers_[i], axis = numbers_[i + 1];
            if (input < 0 || input >= int64_t(ranks_.size()) || axis < 0 || axis >= ranks_[size_t(input)]) damaged();
        }
        i += operands(step);
        depth = depth - taken(step) + (step < REQUIRE ? 1 : 0);
        if (depth == lengths) outputs_end_ = i;  // for the last time where the launch's own results begin
    }
    if (depth < lengths + GRID_AND_SHARED) damaged();
}

LaunchProgram::Launch LaunchProgram::evaluate(const std::vector<const Shape*>& inputs) const {
    for (size_t i = 0; i < ranks_.size(); ++i) {
        const int64_t rank = inputs[i] != nullptr ? int64_t(inputs[i]->rank()) : -1;
        if (rank != ranks_[i]) {
            throw Error("input " + std::to_string(i) + ": " + std::to_string(rank) + " axes, expected " +
                        std::to_string(ranks_[i]) + " (-1: left out)");
        }
    }
    const std::vector<int64_t> results = run<int64_t>(Numbers{inputs}, numbers_.size());
    auto next = results.begin();
    Launch launch;
    for (const int64_t rank : output_ranks_) {
        launch.outputs.emplace_back();
        launch.outputs.back().resize(size_t(rank));
        for (int64_t axis = 0; axis < rank; ++axis) {
            launch.outputs.back().set_axis(int(axis), in_range(*next++, 0, INT64_MAX, "an output's length"));
        }
    }
    for (size_t i = 0; i < 3; ++i) launch.grid[i] = uint32_t(std::max<int64_t>(in_range(*next++, 0, LARGEST_GRID[i], "blocks"), 1));
    launch.shared_bytes = uint32_t(in_range(*next++, 0, INT32_MAX, "bytes of shared memory"));
    while (next != results.end()) launch.scalars.push_back(int32_t(in_range(*next++, 0, INT32_MAX, "a length")));
    return launch;
}

}  // namespace intaglio::cuda
