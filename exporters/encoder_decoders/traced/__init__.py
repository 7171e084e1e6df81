"""Encoder-decoders whose graphs are traced from `transformers`: those that use its attention interface."""
