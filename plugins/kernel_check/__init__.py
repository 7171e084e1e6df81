"""Checking an operator's kernels: cases, their launches, and how far the outputs may be from the NumPy reference."""
