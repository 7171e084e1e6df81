"""A small model that plans: questions over facts, its training data, and its tools."""
