"""The options of strategies, declared by their dataclasses; used by the command line and by `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple, get_args, get_type_hints

HELP = "help"  # in a field's metadata


def option(default: Any, meaning: str) -> Any:
    """Declare a field of a strategy's dataclass with its default and its meaning, which is the help text."""
    return field(default=default, metadata={HELP: meaning})


class StrategyOption(NamedTuple):
    """An option of one strategy."""

    name: str
    kind: type  # int or float
    default: int | float | None  # None: the strategy decides
    meaning: str


def options_of(strategy: type) -> Iterator[StrategyOption]:
    """Yield the options of a strategy, in the order of its fields."""
    hints = get_type_hints(strategy)
    for each in _options(strategy):
        kinds = [kind for kind in get_args(hints[each.name]) or (hints[each.name],) if kind is not type(None)]
        default: Any = each.default
        yield StrategyOption(each.name, kinds[0], default, each.metadata[HELP])


def options_by_name(strategies: Mapping[str, type]) -> dict[str, dict[str, StrategyOption]]:
    """Return option name -> name of each strategy that has it -> the option."""
    found: dict[str, dict[str, StrategyOption]] = {}
    for name, strategy in strategies.items():
        for each in options_of(strategy):
            found.setdefault(each.name, {})[name] = each
    return found


def _options(strategy: type) -> list[Field[Any]]:
    """Return the fields of the constructor, all of which must be declared with `option`."""
    taken = [each for each in fields(strategy) if each.init]
    missing = [each.name for each in taken if HELP not in each.metadata or each.default is MISSING]
    assert not missing, f"{strategy.__name__}: declare {', '.join(missing)} with `option`"
    return taken
