#pragma once

#include <cstddef>
#include <memory>

#include "plugins/ort/operator.h"

namespace intaglio::ort {

constexpr size_t IMAGES = 2;  // a node's first inputs: cubin and PTX

std::unique_ptr<Kernel> create_cuda_operator(const Node& node);

}  // namespace intaglio::ort
