"""Single keywords of a schema as sets of values."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

from intaglio.runtime.sampling.json_schema.containers import Arrays, Members, Objects
from intaglio.runtime.sampling.json_schema.document import UnsupportedError
from intaglio.runtime.sampling.json_schema.nodes import NOTHING, constant
from intaglio.runtime.sampling.json_schema.numbers import Numbers, exact
from intaglio.runtime.sampling.json_schema.patterns import PatternError, expressions
from intaglio.runtime.sampling.json_schema.texts import Texts
from intaglio.runtime.sampling.json_schema.values import Values


def numbers_of(schema: Mapping[str, Any], path: str) -> Numbers:
    """Return the numbers between the bounds of a schema that are its multiples. `path`: of the schema."""
    found = Numbers()
    if "minimum" in schema:
        found = found.both(Numbers(low=exact(schema["minimum"])))
    if "exclusiveMinimum" in schema:
        found = found.both(Numbers(low=exact(schema["exclusiveMinimum"]), low_open=True))
    if "maximum" in schema:
        found = found.both(Numbers(high=exact(schema["maximum"])))
    if "exclusiveMaximum" in schema:
        found = found.both(Numbers(high=exact(schema["exclusiveMaximum"]), high_open=True))
    if "multipleOf" in schema:
        found = found.both(Numbers(factors=frozenset([exact(schema["multipleOf"])]), place=path))
    return found


def check_pattern(pattern: str, path: str) -> None:
    """Raise `UnsupportedError` for a pattern that cannot be enforced. `path`: of its schema."""
    try:
        expressions(pattern, strict=True)
    except PatternError as error:
        raise UnsupportedError(path, f"pattern {pattern!r:.80}: {error}. Simplify it.") from error


def values_of(value: Any) -> Values:
    """Return the set of one value."""
    if value is None:
        return Values(null=True)
    if isinstance(value, bool):
        return Values(booleans=frozenset([value]))
    if isinstance(value, int | float):
        return Values(numbers=(Numbers(values=frozenset([exact(value)])),))
    if isinstance(value, str):
        return Values(texts=(Texts(values=frozenset([value])),))
    if isinstance(value, list):
        return Values(arrays=(Arrays(tuple(map(constant, value)), NOTHING, len(value), len(value)),))
    properties = tuple((name, constant(each)) for name, each in value.items())
    return Values(objects=(Objects((Members(properties, (), NOTHING),), tuple(value)),))


def constants(values: list[Any]) -> Values:
    """Return a set of values; strings, and numbers, in one set each."""
    texts = frozenset(each for each in values if isinstance(each, str))
    numbers: frozenset[Fraction] = frozenset(
        exact(each) for each in values if isinstance(each, int | float) and not isinstance(each, bool)
    )
    rest = [each for each in values if isinstance(each, bool | None | list | Mapping)]
    return reduce(
        Values.joined,
        map(values_of, rest),
        Values(numbers=(Numbers(values=numbers),) if numbers else (), texts=(Texts(values=texts),) if texts else ()),
    )


def dependent_schemas(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schemas of `dependencies`, as before 2019-09."""
    return {name: each for name, each in schema.get("dependencies", {}).items() if not isinstance(each, list)}


def dependent_names(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the names of `dependencies`, as before 2019-09."""
    return {name: each for name, each in schema.get("dependencies", {}).items() if isinstance(each, list)}
