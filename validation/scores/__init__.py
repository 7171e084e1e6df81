"""Scores of a model on data: perplexity on a text, word error rates on recordings."""
