"""Encoder-decoders, such as T5 and BART: both ways to make their two graphs, and the comparison with the source."""
