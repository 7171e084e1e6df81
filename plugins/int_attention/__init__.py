"""The operator IntAttention: contract, kernels and launch geometry."""
