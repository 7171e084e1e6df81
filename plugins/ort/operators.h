// The makers of every operator's kernel; each is defined in plugins/<operator>/ort_binding.cpp.
#pragma once

#include "plugins/ort/operator.h"

namespace intaglio::ort {

std::unique_ptr<Kernel> create_requantize(const Node& node);
std::unique_ptr<Kernel> create_int_add(const Node& node);
std::unique_ptr<Kernel> create_int_gelu(const Node& node);
std::unique_ptr<Kernel> create_int_softmax(const Node& node);
std::unique_ptr<Kernel> create_int_layer_norm(const Node& node);
std::unique_ptr<Kernel> create_int_linear(const Node& node);
std::unique_ptr<Kernel> create_int_matmul(const Node& node);
std::unique_ptr<Kernel> create_int_attention(const Node& node);
std::unique_ptr<Kernel> create_lut_matmul(const Node& node);
std::unique_ptr<Kernel> create_csr_matmul(const Node& node);
std::unique_ptr<Kernel> create_group_matmul(const Node& node);

}  // namespace intaglio::ort
