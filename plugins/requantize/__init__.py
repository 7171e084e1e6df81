"""The operator Requantize: contract, kernels and launch geometry."""
