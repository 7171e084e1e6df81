"""What weights and tokenizers are read from."""
