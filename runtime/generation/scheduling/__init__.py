"""Running many requests at a time in the rows of one batch."""
