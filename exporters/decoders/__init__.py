"""Decoders: one file per family, and the graph they are written with."""
