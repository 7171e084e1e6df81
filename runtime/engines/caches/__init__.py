"""What a decoder's graph becomes for attention to caches by our kernels, in floats or in slots of fewer bits."""
