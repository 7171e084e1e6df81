"""The formats from which weights and tokenizers are read."""
