"""The operator ScaledClamp: contract, kernels and launch geometry."""
