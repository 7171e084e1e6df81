"""Inputs and outputs of bundles: one file per modality, and their table."""
