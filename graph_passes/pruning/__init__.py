"""Passes that remove weights, or set them to 0."""
