"""`python -m intaglio`, for when the program `intaglio` is not on the path."""

from intaglio.cli import main

main()
