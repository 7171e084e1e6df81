"""Loading a recipe: by its name, or from a YAML file, which lists passes in the same form."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from intaglio.display.nearest import did_you_mean
from intaglio.errors import GraphError, UsageError, one_line
from intaglio.files.input_files import read_text
from intaglio.files.safe_yaml import load_yaml
from intaglio.graph_passes.contract import Pass
from intaglio.graph_passes.pass_table import PASSES
from intaglio.graph_passes.recipes.recipes import RECIPES

MAX_BYTES = 65536  # of a recipe file
MAX_PASSES = 200  # of a recipe
MAX_NAME = 100  # characters of a name that are compared with those of passes


def load_recipe(recipe: str | Path, options: Mapping[str, Any] | None = None) -> tuple[str, list[Pass]]:
    """Load a recipe, one of `RECIPES` or a YAML file; return its name and passes.

    `options` override the options of these names in every pass that has them; None means not given.

    A file lists passes by name, with options that differ from the defaults:

        passes:
          - canonicalize
          - float16: {keep: [Softmax]}
          - surgeon: my_changes:rewrite

    Raises `GraphError` for an invalid recipe, `UsageError` for an option that no pass has.
    """
    name, passes = str(recipe), _passes(recipe)
    for option, value in (options or {}).items():
        if value is not None:
            passes = _with_option(name, passes, option, value)
    return name, passes


def _passes(recipe: str | Path) -> list[Pass]:
    name = str(recipe)
    if name in RECIPES:
        return [_parse_pass(entry, f"recipe {name}") for entry in RECIPES[name].passes]
    path = Path(recipe)
    if path.suffix not in (".yaml", ".yml") and not path.exists():
        expected = f"expected one of {', '.join(RECIPES)}, or the path of a YAML file."
        raise GraphError(f"recipe {name!r}: {expected}{did_you_mean(name, RECIPES)}")
    entries = _read(path)
    return [_parse_pass(entry, f"recipe {name}: pass {number}") for number, entry in enumerate(entries, 1)]


def _with_option(recipe: str, passes: Sequence[Pass], option: str, value: Any) -> list[Pass]:
    """Set `option` in every pass that has it."""
    if not any(_has(each, option) for each in passes):
        names = ", ".join(name for name in RECIPES if any(_has(each, option) for each in _passes(name)))
        flag = f"--{option.replace('_', '-')}" + ("" if value is True else f" {value}")
        raise UsageError(f"{flag}: no pass of recipe {recipe} has this option. Recipes that do: {names}.")
    return [dataclasses.replace(each, **{option: value}) if _has(each, option) else each for each in passes]


def _has(graph_pass: Pass, option: str) -> bool:
    return any(field.name == option for field in dataclasses.fields(graph_pass))


def _read(path: Path) -> list[Any]:
    text = read_text(path, "recipe", MAX_BYTES, GraphError, "Give a recipe's name or a readable YAML file.")
    try:
        content = load_yaml(text)
    except Exception as error:  # the library raises various exceptions for odd numbers and dates
        reason = one_line(error, 200)
        raise GraphError(f"recipe {path}: not YAML ({reason}). Write it as `passes: [canonicalize]`.") from error
    passes = content.get("passes") if isinstance(content, dict) else None
    if not isinstance(passes, list) or not passes or set(content) != {"passes"}:
        raise GraphError(f"recipe {path}: expected the one key `passes` with a list. Write `passes: [canonicalize]`.")
    if len(passes) > MAX_PASSES:
        raise GraphError(f"recipe {path}: {len(passes)} passes, expected at most {MAX_PASSES}. Shorten it.")
    return passes


def _parse_pass(entry: Any, where: str) -> Pass:
    """Parse a pass from `name`, `{name: {option: value}}`, or `{name: value}` if it has a main option."""
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, options),) = entry.items()
    else:
        name, options = entry, {}
    if not isinstance(name, str) or name not in PASSES:
        hint = did_you_mean(str(name)[:MAX_NAME], PASSES)
        raise GraphError(f"{where}: got {reprlib.repr(name)}, expected one of {', '.join(PASSES)}.{hint}")
    options = {} if options is None else options
    if isinstance(options, str) and PASSES[name].main_option is not None:
        options = {PASSES[name].main_option: options}
    fields = [field.name for field in dataclasses.fields(PASSES[name])]
    known = ", ".join(fields) or "none"
    if not isinstance(options, dict):
        raise GraphError(
            f"{where}: {name} got {reprlib.repr(options)}, expected its options with values. It has: {known}."
        )
    if unknown := [str(option) for option in options if option not in fields]:
        raise GraphError(f"{where}: {name} has no option {', '.join(unknown)}. Its options: {known}.")
    try:
        made: Pass = msgspec.convert(options, PASSES[name])
    except msgspec.ValidationError as error:
        message = str(error).replace(" - at `$.", " for `")
        raise GraphError(f"{where}: {name}: {message}. {_expected(PASSES[name], message)}") from error
    return made


def _expected(kind: type, message: str) -> str:
    """Return the allowed values of the option named in the message, if they can be listed."""
    for option, hint in get_type_hints(kind).items():
        choices: list[Any] = list(get_args(hint)) if get_origin(hint) is Literal else []
        if isinstance(hint, type) and issubclass(hint, Enum):
            choices = [member.value for member in hint]
        if choices and message.endswith(f"`{option}`"):
            return f"Expected one of: {', '.join(map(str, choices))}."
    return "Fix the value."
