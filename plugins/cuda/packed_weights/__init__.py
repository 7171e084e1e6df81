"""CUDA products with packed weights, for LutMatMul and GroupMatMul."""
