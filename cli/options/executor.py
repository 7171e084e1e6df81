"""The option of verbs whose work can be divided among processes and machines."""

from __future__ import annotations

import click

executor_option = click.option(
    "--executor",
    metavar="inline|processes[:N]|ray[://HOST:PORT]",
    default="inline",
    help="Where the work runs: in this process, in processes of this machine, or on a Ray cluster. Same result.",
)
