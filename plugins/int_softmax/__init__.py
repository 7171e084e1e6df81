"""The operator IntSoftmax: contract, kernels and launch geometry."""
