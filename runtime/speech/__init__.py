"""Speech recognition around an engine: reading recordings, windows, CTC decoding, language models, transcripts.

Nothing here opens an engine: the functions take log-probabilities, or a function that computes them.
"""
