"""The options of all commands that run a model: the runtime and its threads."""

from __future__ import annotations

import click

from intaglio.cli.choices import TARGET, OneOf
from intaglio.cli.verb import Decorator, group
from intaglio.targets import DEFAULT, summary
from intaglio.threads import MAX_THREADS

RUNTIME = "Runtime"


def target_option(what: str = "Runtime", kind: OneOf = TARGET, also: str = "") -> Decorator:
    """`--target`; `what`: which runtime of the command, `also`: values besides the targets."""
    option = click.option("--target", type=kind, default=DEFAULT, show_default=True, help=f"{what}: {summary()}{also}.")
    return group(RUNTIME, option)


def threads_option(what: str = "CPU threads") -> Decorator:
    """`--threads`; `what`: whose threads."""
    meaning = f"{what}, for ort-cpu.  [default: all]"
    return group(RUNTIME, click.option("--threads", type=click.IntRange(1, MAX_THREADS), help=meaning))
