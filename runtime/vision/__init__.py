"""Models that read images: reading the files, and one forward pass."""
