"""`intaglio recipes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from intaglio.cli.options.choices import RecipeName
from intaglio.cli.printing.results import json_option, notice, print_json, print_table, say
from intaglio.cli.running.command import verb

if TYPE_CHECKING:
    from intaglio.graph_passes.recipes.listing import ListedRecipe
    from intaglio.graph_passes.recipes.measured import Measurement

EPILOG = """\b
Examples:
  intaglio recipes
  intaglio recipes gptq
  intaglio recipes --json
"""


@verb("recipes", epilog=EPILOG)
@click.argument("name", required=False, type=RecipeName(), metavar="[NAME]")
@json_option
def recipes_command(name: str | None, as_json: bool) -> None:
    """List the recipes of `intaglio compress`: the job, the inputs and the measurements of each.

    With NAME, show one with its passes, which can be copied to a recipe file and changed, and all measurements.
    """
    from intaglio.graph_passes.recipes.listing import recipes
    from intaglio.graph_passes.recipes.measured import MODELS

    listed = recipes(name)
    if as_json:
        print_json(listed)
        return
    found = listed.recipes
    if name is not None:
        _show(found[0])
    else:
        columns = ["recipe", "for", "data", "size", "passed"]
        rows = [(each.name, each.job, each.needs.split(",")[0], *_figures(each.measured)) for each in found]
        print_table("Recipes", columns, rows, may_drop=["data", "size"])
    models = ", ".join(f"{short} ({model.title}, {model.weights:g} M weights)" for short, model in MODELS.items())
    notice(
        f"Sizes (of float32; of the largest model) and verdicts of validate were measured on {models}. "
        "Yours may differ: validate it. `intaglio recipes NAME` shows each."
    )


def _figures(rows: list[Measurement]) -> tuple[str, str]:
    """The size on the largest model, and on how many of the models the defaults of the recipe passed."""
    from intaglio.graph_passes.recipes.measured import MODELS

    rows = [row for row in rows if not row.options]
    if not rows:
        return "", ""
    largest = max(rows, key=lambda row: MODELS[row.model].weights)
    return f"{largest.size:.2f}", f"{sum(row.passed for row in rows)} of {len(rows)}"


def _show(recipe: ListedRecipe) -> None:
    from intaglio.graph_passes.recipes.measured import described

    facts = [("does", recipe.does), ("for", recipe.job), ("data", recipe.needs or "none")]
    print_table(f"Recipe {recipe.name}", ["", ""], facts)
    say("passes:")
    for entry in recipe.passes:
        ((step, options),) = entry.items() if isinstance(entry, dict) else ((entry, {}),)
        given = ", ".join(f"{option}: {value}" for option, value in options.items())
        say(f"  - {step}" + (f": {{{given}}}" if given else ""))
    say()
    if recipe.measured:
        rows = [
            (row.model, row.options, f"{row.size:.2f}", described(row.measures), row.passed) for row in recipe.measured
        ]
        columns = ["model", "options", "size", "against float32", "passed"]
        print_table(
            "Measured", columns, rows, may_drop=[] if any(row.options for row in recipe.measured) else ["options"]
        )
