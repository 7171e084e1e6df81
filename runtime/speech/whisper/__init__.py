"""Whisper: encoder-decoders that write what is said in recordings, window by window."""
