"""Decoders: one file per family, and the classes that write their graph."""
