"""Recipes to try where a compressed bundle failed its bounds: those that passed on measured models of the same task."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from intaglio.accuracy.default_bounds import MORE_IS_BETTER
from intaglio.bundle.bundle import Manifest
from intaglio.graph_passes.recipes.measured import MEASUREMENTS, MODELS, Measurement
from intaglio.graph_passes.recipes.recipes import RECIPES


class Advice(msgspec.Struct):
    """A recipe that passed on all measured models of the task; sizes and measures are the worst of them."""

    recipe: str
    options: str  # of `compress`, such as "--bits 8"
    size: float  # by float32
    measures: dict[str, float]
    models: list[str]


def recipes_to_try(manifest: Manifest, given: Mapping[str, float]) -> list[Advice]:
    """Recipes for a bundle like this one, the smallest first, without the one that it was made with.

    `given`: the user's bounds, which the measurements have to hold too.
    """
    alike = [row for row in MEASUREMENTS if manifest.task in MODELS[row.model].tasks]
    tried: dict[tuple[str, str], list[Measurement]] = {}
    for row in alike:
        tried.setdefault((row.recipe, row.options), []).append(row)
    advice = [
        _worst(rows)
        for (recipe, options), rows in tried.items()
        if all(_holds(row, given) for row in rows) and (options or not _made_with(manifest, recipe))
    ]
    return sorted((each for each in advice if each.size < 1), key=lambda each: each.size)


def _holds(row: Measurement, given: Mapping[str, float]) -> bool:
    """Whether the recipe passed, by the user's bounds too."""
    for name, bound in given.items():
        value = row.measures.get(name)
        if value is not None and (value < bound if name in MORE_IS_BETTER else value > bound):
            return False
    return row.passed


def _made_with(manifest: Manifest, recipe: str) -> bool:
    """Whether the bundle's last passes match the recipe."""
    passes = [each if isinstance(each, str) else next(iter(each)) for each in RECIPES[recipe].passes]
    return [record.name for record in manifest.passes][-len(passes) :] == passes


def _worst(rows: list[Measurement]) -> Advice:
    measures = {
        name: (min if name in MORE_IS_BETTER else max)(row.measures[name] for row in rows if name in row.measures)
        for name in rows[0].measures
    }
    first = rows[0]
    return Advice(first.recipe, first.options, max(row.size for row in rows), measures, [row.model for row in rows])
