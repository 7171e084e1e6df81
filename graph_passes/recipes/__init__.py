"""Recipes: the ordered lists of passes, how they are read, and what they measured."""
