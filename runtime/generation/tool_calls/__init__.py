"""Tool calls in the text of a model: one format, one file, and the list of them in `formats`."""
