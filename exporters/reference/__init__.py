"""The source model, and the comparison of an exported graph with it."""
