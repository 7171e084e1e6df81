"""Checkpoints whose weights are quantised already: which are read, how, and which are refused."""
