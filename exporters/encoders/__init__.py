"""Text encoders: one file per family, and the tracer."""
