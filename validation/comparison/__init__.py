"""Comparing two models: what runs them, where they differ, and the rules of the verdict."""
