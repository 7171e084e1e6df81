"""A small model that plans: questions over facts, what it is trained on, and its tools."""
