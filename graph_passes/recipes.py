"""The passes by name, and recipes: the ordered lists of passes."""

from __future__ import annotations

import dataclasses
import reprlib
from pathlib import Path
from typing import Any

import msgspec
import yaml

from intaglio.errors import GraphError, one_line
from intaglio.graph_passes.canonicalize import Canonicalize
from intaglio.graph_passes.contract import GraphPass
from intaglio.graph_passes.float16 import Float16
from intaglio.graph_passes.fold_constants import FoldConstants
from intaglio.graph_passes.raise_opset import RaiseOpset

PASSES: dict[str, type] = {
    "raise_opset": RaiseOpset,
    "fold_constants": FoldConstants,
    "canonicalize": Canonicalize,
    "float16": Float16,
}

CANONICAL: list[GraphPass] = [RaiseOpset(), FoldConstants(), Canonicalize()]

MAX_BYTES = 65536  # of a recipe file

RECIPES: dict[str, list[GraphPass]] = {
    "canonical": CANONICAL,
    "float16": [*CANONICAL, Float16()],
}


def load_recipe(recipe: str | Path) -> tuple[str, list[GraphPass]]:
    """The name and the passes of a recipe: one of `RECIPES`, or a YAML file.

    A file lists passes by name, with their options where they differ from the defaults:

        passes:
          - canonicalize
          - float16: {keep: [Softmax]}

    Raises `GraphError` with one line for whatever is wrong with it.
    """
    name = str(recipe)
    if name in RECIPES:
        return name, list(RECIPES[name])
    path = Path(recipe)
    if path.suffix not in (".yaml", ".yml") and not path.is_file():
        raise GraphError(f"recipe {name!r}: expected one of {', '.join(RECIPES)}, or the path of a YAML file.")
    entries = _read(path)
    return name, [_parse_pass(entry, f"recipe {name}: pass {number}") for number, entry in enumerate(entries, 1)]


def _read(path: Path) -> list[Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise GraphError(f"recipe {path}: {path.stat().st_size} bytes, expected at most {MAX_BYTES}. Shorten it.")
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GraphError(f"recipe {path}: {error.strerror}. Give a recipe's name or a readable YAML file.") from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = one_line(error, 200)
        raise GraphError(f"recipe {path}: not YAML ({reason}). Write it as `passes: [canonicalize]`.") from error
    passes = content.get("passes") if isinstance(content, dict) else None
    if not isinstance(passes, list) or not passes or set(content) != {"passes"}:
        raise GraphError(f"recipe {path}: expected the one key `passes` with a list. Write `passes: [canonicalize]`.")
    return passes


def _parse_pass(entry: Any, where: str) -> GraphPass:
    """A pass from `name` or `{name: {option: value}}`."""
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, options),) = entry.items()
    else:
        name, options = entry, {}
    if not isinstance(name, str) or name not in PASSES:
        raise GraphError(f"{where}: got {reprlib.repr(name)}, expected one of {', '.join(PASSES)}.")
    options = {} if options is None else options
    fields = [field.name for field in dataclasses.fields(PASSES[name])]
    known = ", ".join(fields) or "none"
    if not isinstance(options, dict):
        raise GraphError(
            f"{where}: {name} got {reprlib.repr(options)}, expected its options with values. It has: {known}."
        )
    if unknown := [str(option) for option in options if option not in fields]:
        raise GraphError(f"{where}: {name} has no option {', '.join(unknown)}. Its options: {known}.")
    try:
        made: GraphPass = msgspec.convert(options, PASSES[name])
    except msgspec.ValidationError as error:
        raise GraphError(f"{where}: {name}: {str(error).replace(' - at `$.', ' for `')}. Mend the value.") from error
    return made
