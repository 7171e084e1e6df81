"""Sentences, voices and recordings of the corpus that make_speech_corpus.py makes."""
