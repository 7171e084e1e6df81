"""Whisper: encoder-decoders that transcribe recordings, window by window."""
