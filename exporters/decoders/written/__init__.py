"""Decoders whose graph is written operator by operator: faster to export, and the check may be left out."""
