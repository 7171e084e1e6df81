"""The operator PackedMatMul: contract and CPU kernel."""
