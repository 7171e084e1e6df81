"""Calibration: running a graph on real inputs, and what passes learn from it."""
