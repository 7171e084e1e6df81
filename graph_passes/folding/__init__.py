"""Passes that fold what is constant into weights."""
