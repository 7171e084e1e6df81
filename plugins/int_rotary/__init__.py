"""The operator IntRotary: contract, kernels and launch geometry."""
