"""The sensitivity of a decoder's loss to each weight."""
