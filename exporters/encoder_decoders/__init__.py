"""Encoder-decoders, such as T5: one file per family, and the two graphs they are written with."""
