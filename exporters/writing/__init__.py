"""What graphs are written with, whatever the family."""
