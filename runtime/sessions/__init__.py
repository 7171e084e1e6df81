"""Sessions: an engine of a decoder with its cache, run step by step."""
