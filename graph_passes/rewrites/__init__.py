"""Formulas that many nodes spell out and one standard operator computes: one file for each."""
