"""Text encoders: one file per family, and tracing them."""
