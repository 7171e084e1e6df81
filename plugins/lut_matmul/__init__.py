"""The operator LutMatMul: contract, kernels and launch geometry."""
