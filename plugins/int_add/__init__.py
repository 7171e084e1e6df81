"""The operator IntAdd: contract, kernels and launch geometry."""
