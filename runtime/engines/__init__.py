"""Engines: opening, running and building them."""
