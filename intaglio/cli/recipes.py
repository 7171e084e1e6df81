"""`intaglio recipes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from intaglio.cli.choices import RecipeName
from intaglio.cli.output import json_option, notice, print_json, print_table, say
from intaglio.cli.verb import verb

if TYPE_CHECKING:
    from intaglio.graph_passes.measured import Measurement
    from intaglio.graph_passes.recipe_list import ListedRecipe

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
    """List the recipes of `intaglio compress`: which job each is for, what it needs, and what it measured.

    With NAME, show one with its passes, which can be copied to a recipe file and changed, and all measurements.
    """
    from intaglio.graph_passes.measured import MODELS
    from intaglio.graph_passes.recipe_list import recipes

    found = recipes(name).recipes
    if as_json:
        print_json(recipes(name))
        return
    if name is not None:
        _show(found[0])
    else:
        columns = ["recipe", "for", "needs", "size", "passed on"]
        rows = [(each.name, each.job, each.needs, sizes(each.measured), _verdicts(each.measured)) for each in found]
        print_table("Recipes", columns, rows, may_drop=["needs", "size"])
    models = "; ".join(f"{short} is {model.title}" for short, model in MODELS.items())
    notice(f"Size and verdict of validate, by float32, on models of ours: {models}. Yours may differ: validate it.")


def sizes(rows: list[Measurement]) -> str | None:
    """The sizes by float32, from smallest to largest."""
    found = sorted({f"{row.size:.2f}" for row in rows})
    return f"{found[0]}–{found[-1]}" if len(found) > 1 else next(iter(found), None)


def _verdicts(rows: list[Measurement]) -> str:
    """The models on which the recipe passed, and those on which it did not: `large, T5; not MiniLM`."""
    passed, failed = (", ".join(row.model for row in rows if row.passed is verdict) for verdict in (True, False))
    return "; ".join(filter(None, (passed, failed and f"not {failed}")))


def _show(recipe: ListedRecipe) -> None:
    print_table(
        f"Recipe {recipe.name}", ["", ""], [("does", recipe.does), ("for", recipe.job), ("needs", recipe.needs)]
    )
    say("passes:")
    for entry in recipe.passes:
        ((step, options),) = entry.items() if isinstance(entry, dict) else ((entry, {}),)
        given = ", ".join(f"{option}: {value}" for option, value in options.items())
        say(f"  - {step}" + (f": {{{given}}}" if given else ""))
    say()
    if recipe.measured:
        rows = [(row.model, f"{row.size:.2f}", described(row.measures), row.passed) for row in recipe.measured]
        print_table("Measured", ["model", "size", "against float32", "passed"], rows)


def described(measures: dict[str, float]) -> str:
    """Measurements with their units, in the words of the documentation."""
    labels = {
        "relative": "error / largest {:.4g}",
        "mean_cosine": "cosine {:.4g}",
        "min_cosine": "smallest {:.4g}",
        "rank_correlation": "order {:.4g}",
        "kl_divergence": "KL {:.4g}",
        "perplexity_rise": "perplexity {:+.4g} %",
        "same_top": "same token {:.4g}",
        "token_errors": "tokens edited {:.2%}",
    }
    return ", ".join(labels[name].format(value) for name, value in measures.items())
