"""Passes for integer-only inference (I-BERT): from a float encoder, through Q/DQ, to integer operators."""
