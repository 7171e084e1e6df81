"""Plans: their language, grammar and checks, and the references between calls."""
