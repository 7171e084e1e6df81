"""Compression of linear layers' weights, by fewer bits or pruning; activations stay in floating point."""
