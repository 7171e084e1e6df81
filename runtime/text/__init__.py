"""Texts in and out of encoders and decoders: tokenizers, chunks, embeddings, similarities."""
