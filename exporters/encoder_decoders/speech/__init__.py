"""Encoder-decoders for recordings: Whisper, traced from `transformers`, behind its log-mel front end."""
