"""What is measured on a model's task: perplexity, word errors, text quality, scores."""
