"""The operator LowRankMatMul: contract, kernels and launch geometry."""
