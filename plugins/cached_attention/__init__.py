"""The operator CachedAttention: contract, kernels and launch geometry."""
