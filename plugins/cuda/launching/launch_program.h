// The launch of a CUDA kernel, computed from the lengths of a node's inputs.
//
// plugins/cuda/launching/programs.py writes the numbers and explains them, expressions.py there the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plugins/shape.h"

namespace intaglio::cuda {

enum Step : int64_t { NUMBER, LENGTH, ADD, SUBTRACT, MULTIPLY, DIVIDE, EQUAL, LESS, REQUIRE, REQUIRE_OR_ONE };

class LaunchProgram {
public:
    struct Launch {
        uint32_t grid[3];
        uint32_t shared_bytes;
        std::vector<int32_t> scalars;
        std::vector<Shape> outputs;
    };

    // Throws Error for numbers that are no launch of a node with these counts: they may come from anywhere.
    LaunchProgram(std::vector<int64_t> numbers, size_t outputs);

    const uint32_t (&block() const)[3] { return block_; }
    size_t inputs() const { return ranks_.size(); }
    // Of each input, -1 for one that the node leaves out; and of each output.
    const std::vector<int64_t>& ranks() const { return ranks_; }
    const std::vector<int64_t>& output_ranks() const { return output_ranks_; }

    // The launch for inputs of these shapes, null for one left out. Throws Error for inputs that the program does not
    // accept, or a launch beyond CUDA's limits.
    Launch evaluate(const std::vector<const Shape*>& inputs) const;

    // The outputs' lengths, one after another, where lengths are somebody's expressions. `domain` makes these:
    // number(value), length(input, axis), combine(step, a, b), and require(step, input, axis, expected), which checks.
    template <typename Value, typename Domain>
    std::vector<Value> output_lengths(const Domain& domain) const {
        return run<Value>(domain, outputs_end_);
    }

private:
    template <typename Value, typename Domain>
    std::vector<Value> run(const Domain& domain, size_t end) const {
        std::vector<Value> stack;
        const auto pop = [&] {
            const Value value = stack.back();
            stack.pop_back();
            return value;
        };
        for (size_t i = begin_; i < end;) {
            const Step step = Step(numbers_[i++]);
            const int64_t* const given = numbers_.data() + i;
            i += operands(step);
            if (step == NUMBER) {
                stack.push_back(domain.number(given[0]));
            } else if (step == LENGTH) {
                stack.push_back(domain.length(size_t(given[0]), int(given[1])));
            } else if (step < REQUIRE) {
                const Value b = pop(), a = pop();
                stack.push_back(domain.combine(step, a, b));
            } else {
                domain.require(step, size_t(given[0]), int(given[1]), pop());
            }
        }
        return stack;
    }

    // The numbers that follow a step.
    static size_t operands(int64_t step) { return step == NUMBER ? 1 : step == LENGTH || step >= REQUIRE ? 2 : 0; }
    void check_program();

    std::vector<int64_t> numbers_;
    size_t begin_ = 0;        // of the program
    size_t outputs_end_ = 0;  // of the part that computes the outputs' lengths
    uint32_t block_[3];
    std::vector<int64_t> ranks_, output_ranks_;
};

}  // namespace intaglio::cuda
