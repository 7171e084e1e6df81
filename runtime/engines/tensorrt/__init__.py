"""Engines on TensorRT and TensorRT-RTX, and building them."""
