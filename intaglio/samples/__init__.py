"""Real sentences and recordings that ship with the project, to check models on real input."""
