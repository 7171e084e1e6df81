"""Sessions: a decoder's engine with its KV cache, run step by step."""
