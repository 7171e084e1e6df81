"""The operator GroupMatMul: contract, kernels and launch geometry."""
