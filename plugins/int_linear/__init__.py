"""The operator IntLinear: contract, kernels and launch geometry."""
