"""`intaglio models`."""

from __future__ import annotations

import click

from intaglio.cli.printing.results import json_option, number_of, print_json, print_table, say
from intaglio.cli.running.command import verb

EPILOG = """\b
Examples:
  intaglio models
  intaglio models qwen
  intaglio models --json
"""


@verb("models", epilog=EPILOG)
@click.argument("pattern", required=False)
@json_option
def models_command(pattern: str | None, as_json: bool) -> None:
    """List the types of models that are known to work; with PATTERN, those whose model_type contains it.

    Each was tested with a small random checkpoint. Other types may work, too: every export of a traced graph is
    compared with the source model.
    """
    from intaglio.exporters.known_models import models

    found = models(pattern)
    if as_json:
        print_json(found)
        return
    rows = [
        (each.model_type, each.task, each.graph, *(", ".join(listed) for listed in (each.tested, each.recipes)),
         ", ".join(each.strategies), ", ".join(each.targets))
        for each in found.models
    ]  # fmt: skip
    columns = ["model_type", "task", "graph", "tested", "recipes", "strategies", "targets"]
    print_table("Models", columns, rows, may_drop=["targets", "recipes", "strategies", "tested"])
    say(number_of(len(found.models), "types of models"))
