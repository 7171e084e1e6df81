"""Text from decoders: prompts in, pieces of text out."""
