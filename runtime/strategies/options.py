"""The options of strategies, as their dataclasses declare them: what the command line and `generate` know of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, NamedTuple, get_args, get_type_hints

HELP = "help"  # in a field's metadata


def option(default: Any, meaning: str) -> Any:
    """A field of a strategy's dataclass: its default, and what it means, for help texts."""
    return field(default=default, metadata={HELP: meaning})


class StrategyOption(NamedTuple):
    """An option of one strategy."""

    name: str
    kind: type  # int or float
    default: int | float | None  # None: the strategy decides
    meaning: str


def options_of(strategy: type) -> Iterator[StrategyOption]:
    """The options of a strategy, in the order of its fields."""
    hints = get_type_hints(strategy)
    for each in _options(strategy):
        kinds = [kind for kind in get_args(hints[each.name]) or (hints[each.name],) if kind is not type(None)]
        default: Any = each.default
        yield StrategyOption(each.name, kinds[0], default, each.metadata[HELP])


def options_by_name(strategies: Mapping[str, type]) -> dict[str, dict[str, StrategyOption]]:
    """Name of an option -> name of each strategy that has it -> the option there."""
    found: dict[str, dict[str, StrategyOption]] = {}
    for name, strategy in strategies.items():
        for each in options_of(strategy):
            found.setdefault(each.name, {})[name] = each
    return found


def _options(strategy: type) -> list[Field[Any]]:
    """The fields that are options; every one that the constructor takes is, and says what it means."""
    taken = [each for each in fields(strategy) if each.init]
    missing = [each.name for each in taken if HELP not in each.metadata or each.default is MISSING]
    assert not missing, f"{strategy.__name__}: declare {', '.join(missing)} with `option`"
    return taken
