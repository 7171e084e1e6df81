"""Writing graphs, shared by all families."""
