"""How far two models are apart, and how far they may be."""
