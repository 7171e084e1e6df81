"""Weights of linear layers in few bits, or fewer of them, while activations stay in floating point."""
