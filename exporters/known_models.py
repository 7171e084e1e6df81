"""The types of models that are known to work, and what was tested of each: `known_models.json`, written by the tests.

`make families` writes the file; a type that is not in it may work as well.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from intaglio.errors import UsageError

FILE = Path(__file__).with_name("known_models.json")


class KnownModel(msgspec.Struct, frozen=True):
    """What was tested of a type of models, with a small random checkpoint. Lists are sorted."""

    model_type: str  # as in config.json
    task: str
    graph: str  # how its graph is made: "traced"
    tested: list[str]  # what was compared with the source model
    recipes: list[str]  # of `compress`
    strategies: list[str]  # of `generate`
    targets: list[str]  # of `build`; with the GPU


class KnownModels(msgspec.Struct, frozen=True):
    """The result of `models`."""

    models: list[KnownModel]


def models(pattern: str | None = None) -> KnownModels:
    """The known types of models, in alphabetical order; with `pattern` those whose name contains it.

    Raises `UsageError` if there is none.
    """
    known = msgspec.json.decode(FILE.read_bytes(), type=list[KnownModel])
    found = [each for each in known if pattern is None or pattern.lower() in each.model_type]
    if not found:
        raise UsageError(
            f"pattern {pattern}: no known type of models has it in its name. It may still work, as every export is "
            "checked. List all with: intaglio models"
        )
    return KnownModels(found)
