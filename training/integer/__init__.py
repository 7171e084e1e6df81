"""Fine-tuning integer-only bundles: their graph as a torch module."""
