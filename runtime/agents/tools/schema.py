"""Whether the parameters of a tool are a JSON schema, as far as plans read it; those of a server may be anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from intaglio.errors import UsageError

TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
NUMBERS = [
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "minProperties", "maxProperties"),
]
ONE, LISTS, MAPS = (
    ("items", "additionalProperties"),
    ("anyOf", "oneOf", "allOf", "prefixItems"),
    ("properties", "$defs"),
)
MAX_DEPTH = 64  # of schemas in schemas


def check_schema(schema: Any, place: str, depth: int = MAX_DEPTH) -> None:
    """Raise `UsageError` if `schema`, or one in it, is not a JSON schema; `place` names it in the message."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise UsageError(f"{place} is {schema!r:.60}, expected a JSON schema: an object, true or false.")
    if not depth:
        raise UsageError(f"{place:.200}... is nested more than {MAX_DEPTH} deep. Use $ref for its inner parts.")
    for keyword, expected, valid in _keywords(schema):
        if not valid:
            raise UsageError(f"{place}: {keyword} is {schema[keyword]!r:.60}, expected {expected}.")
    for keyword in ONE:
        check_schema(schema.get(keyword, True), f"{place}: {keyword}", depth - 1)
    for keyword in LISTS:
        for each in schema.get(keyword, ()):
            check_schema(each, f"{place}: {keyword}", depth - 1)
    for keyword in MAPS:
        for name, each in schema.get(keyword, {}).items():
            check_schema(each, f"{place}: {keyword}: {name}", depth - 1)


def _keywords(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield the keywords that are there, what they must be, and whether they are."""
    for keyword, value in schema.items():
        if keyword == "type":
            types = value if isinstance(value, list) else [value]
            yield keyword, f"one or more of {', '.join(TYPES)}", all(each in TYPES for each in types)
        elif keyword in NUMBERS:
            yield keyword, "a number", isinstance(value, int | float) and not isinstance(value, bool)
        elif keyword in (*LISTS, "enum"):
            yield keyword, "a list", isinstance(value, list)
        elif keyword == "required":
            names = isinstance(value, list) and all(isinstance(each, str) for each in value)
            yield keyword, "a list of names", names
        elif keyword in MAPS:
            yield keyword, "an object", isinstance(value, Mapping)
        elif keyword == "$ref":
            yield keyword, "a reference such as #/$defs/name", isinstance(value, str)
