// The launch of a CUDA kernel, computed from the lengths of a node's inputs by the attribute `launch`.
//
// plugins/ort/cuda_nodes.py writes the attribute and explains it, plugins/cuda/launching/expressions.py the steps.
#pragma once

#include <cstdint>
#include <vector>

#include "plugins/ort/operator.h"

namespace intaglio::ort {

class LaunchProgram {
public:
    struct Launch {
        uint32_t grid[3];
        uint32_t shared_bytes;
        std::vector<int32_t> scalars;
        std::vector<Shape> outputs;
    };

    // Throws Error for numbers that are no launch of a node with these counts: the attribute may come from anywhere.
    LaunchProgram(std::vector<int64_t> numbers, size_t outputs);

    const uint32_t (&block() const)[3] { return block_; }
    size_t inputs() const { return ranks_.size(); }

    // Throws Error for inputs that the program does not accept, or a launch beyond CUDA's limits.
    Launch evaluate(const std::vector<Tensor>& inputs) const;

private:
    std::vector<int64_t> run(const std::vector<Tensor>& inputs) const;
    size_t check_program() const;  // the number of results

    std::vector<int64_t> numbers_;
    size_t begin_ = 0;  // of the program
    size_t results_ = 0;
    uint32_t block_[3];
    std::vector<int64_t> ranks_, output_ranks_;
};

}  // namespace intaglio::ort
