"""Choosing the next token: filters, penalties, grammars, log-probabilities."""
