"""Fine-tuning language models: alignment, drafts, early exits, pruning."""
