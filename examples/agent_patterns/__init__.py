"""Patterns of LLMCompiler (thesis, sections 6.4, D.7, D.8): replanning in the Game of 24, and an interactive shop."""
