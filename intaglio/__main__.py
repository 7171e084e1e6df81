"""`python -m intaglio`, for where the program `intaglio` is not on the path."""

from intaglio.cli import main

main()
