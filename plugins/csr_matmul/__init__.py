"""The operator CsrMatMul: contract, kernels and launch geometry."""
