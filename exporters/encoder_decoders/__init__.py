"""Encoder-decoders, such as T5: one file per family, and the classes that write their two graphs."""
