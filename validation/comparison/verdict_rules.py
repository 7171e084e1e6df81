"""The rules for the verdict of a comparison: by the passes of the graph, the model's task, and the user's bounds.

same computation    every value of every output, relative to the output's largest magnitude
approximation       the measures of the task; values only have to be finite
given bounds        replace the defaults; a bound on values judges approximations too
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from intaglio.accuracy.default_bounds import (
    OF_VALUES,
    Bounds,
    Limit,
    approximate_bounds,
    bounds_for,
    check_given,
    quality_limits,
)
from intaglio.validation.comparison.changes import Changes


@dataclass(frozen=True)
class Rules:
    """The bounds of one comparison: for the values, and for the measures of the task."""

    changes: Changes
    values: Bounds
    limits: dict[str, Limit]


def rules_for(changes: Changes, measures: Collection[str], given: Mapping[str, float]) -> Rules:
    """The rules for a comparison whose task has `measures`, with the bounds that the user gave.

    Raises `UsageError` for a given bound without a measure, or out of range.
    """
    check_given(given, [*OF_VALUES, *measures])
    if changes.approximate:
        cosine = "" if "min_cosine" in measures else "min_cosine"
        return Rules(changes, approximate_bounds(given, cosine), quality_limits(changes.effect, measures, given))
    asked = [name for name in measures if name in given and name not in OF_VALUES]
    return Rules(changes, bounds_for(changes.precision, given), quality_limits(changes.effect, asked, given))
