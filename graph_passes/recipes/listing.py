"""The verb `recipes`: the purpose of each recipe, its passes, and its measurements."""

from __future__ import annotations

from typing import Any

import msgspec

from intaglio.display.nearest import did_you_mean
from intaglio.errors import UsageError
from intaglio.graph_passes.recipes.measured import MEASUREMENTS, Measurement
from intaglio.graph_passes.recipes.recipes import RECIPES


class ListedRecipe(msgspec.Struct):
    """One recipe; `passes` is the content of a recipe file that does the same."""

    name: str
    does: str
    job: str
    needs: str  # data for --calibration; "": none
    passes: list[Any]
    measured: list[Measurement]


class ListedRecipes(msgspec.Struct):
    """The recipes, in the order of the table."""

    recipes: list[ListedRecipe]


def recipes(name: str | None = None) -> ListedRecipes:
    """List the recipes of `compress`, or the one called `name`, with measurements on named models.

    Raises `UsageError` for an unknown name.
    """
    if name is not None and name not in RECIPES:
        expected = f"expected one of {', '.join(RECIPES)}."
        raise UsageError(f"recipe {name!r}: {expected}{did_you_mean(name, RECIPES)}")
    return ListedRecipes(
        [
            ListedRecipe(
                each,
                recipe.does,
                recipe.job,
                recipe.needs,
                list(recipe.passes),
                [row for row in MEASUREMENTS if row.recipe == each],
            )
            for each, recipe in RECIPES.items()
            if name in (None, each)
        ]
    )
