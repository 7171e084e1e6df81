"""The operator IntGelu: contract, kernels and launch geometry."""
