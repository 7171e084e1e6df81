"""Rounding weights and activations to integers, with QuantizeLinear and DequantizeLinear."""
