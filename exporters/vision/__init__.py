"""Export models that read images: traced encoders behind their image processor."""
