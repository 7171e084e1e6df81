"""The options of all commands that make engines: the lengths of axes that these accept."""

from __future__ import annotations

import click

from intaglio.cli.running.command import Decorator, group
from intaglio.errors import UsageError


def length_options() -> Decorator:
    """`--batch`, `--sequence` and `--axis`."""
    return group(
        "Lengths of axes",
        click.option("--batch", help="Batch sizes as MIN:OPT:MAX.  [default: 1:8:32]"),
        click.option("--sequence", help="Sequence lengths as MIN:OPT:MAX.  [default: up to the model's maximum, 128]"),
        click.option("--axis", "axes", multiple=True, metavar="NAME=MIN:OPT:MAX", help="Lengths of any other axis."),
    )


def lengths_by_name(axes: tuple[str, ...]) -> dict[str, str]:
    """The values of `--axis`: axis -> lengths. Raises `UsageError`."""
    named = {}
    for text in axes:
        name, separator, lengths = text.partition("=")
        if not separator:
            raise UsageError(f"--axis {text!r}: expected NAME=MIN:OPT:MAX, such as --axis frames=1:100:3000.")
        named[name] = lengths
    return named
