"""The operator IntLayerNorm: contract, kernels and launch geometry."""
