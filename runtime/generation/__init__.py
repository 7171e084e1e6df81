"""Text generation with decoders: prompts in, pieces of text out."""
