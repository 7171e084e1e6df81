"""The operator IntMatMul: contract, kernels and launch geometry."""
