"""Encoder-decoders whose graphs are written operator by operator: those with relative positions, such as T5."""
