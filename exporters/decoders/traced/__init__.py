"""Decoders whose graph is traced from `transformers`: any causal language model that uses its attention interface."""
