"""The operator QuantizeCache: contract, kernels and launch geometry; and the slots of a quantised cache."""
