"""Positions inside attention, in integers."""
