"""The rules of values in a plan's grammar, by their JSON schemas."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from intaglio.runtime.agents.plan.check import TYPES, Schema, problem, property_schema, resolved
from intaglio.runtime.agents.plan.text import rendered_value

MAX_DEPTH = 12  # of the values of a schema; below the parser's limit
ANY_DEPTH = 3  # of values without a schema
MAX_ITEMS = 64  # alternatives for the length of an array with a schema for each place
MAX_LENGTH = 4096  # of a string with a limit
# Weak models would not end a string or a list: they repeat themselves until no tokens are left.
STRING_CHARACTERS = 2000  # of text between references, where no other bound is given
MOST_STRING_CHARACTERS = 100_000  # that may be asked for
REFERENCES = 64  # in a string, with doubled dollar signs
REPEATED = 256  # items of an array, or entries of an object, without a bound
LARGEST = 10**15  # of the numbers of a schema with one bound
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "$defs", "$schema"})

ESCAPE = r'\\["\\\/bfnrt]|\\u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})'
PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
CHARACTER = rf'[^"\\$\x00-\x1f]|{ESCAPE}|{PAIR}'
TERMINALS = [
    rf'KEY: /"({CHARACTER}|\$){{0,{STRING_CHARACTERS}}}"/',
    r"INTEGER: /-?(0|[1-9][0-9]{0,17})/",
    # Floats as Python writes them, below the largest one.
    r"NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,24})?([eE][+-]?[0-9]{1,2})?/",
    r"SMALL_OR_LARGE: /-?[0-9](\.[0-9]{1,20})?e[+-]?[12][0-9]{2}/",
]


class NamedValue(NamedTuple):
    """A value with a name: a property, or an argument given by its name."""

    text: str  # in the grammar
    required: bool


def literal(text: str) -> str:
    """Return a string of the grammar."""
    return json.dumps(text, ensure_ascii=False)


class ValueGrammar:
    """Rules for values. Each rule can be completed without a reference, so that no text leads to a dead end.

    `characters`: of a string's text, where its schema has no bound, and between its references.
    """

    def __init__(self, characters: int = STRING_CHARACTERS) -> None:
        self._characters = characters
        self._rules: dict[str, str] = {}  # what they expand to -> the name
        self._values: dict[str, str | None] = {}

    @property
    def rules(self) -> list[str]:
        """The rules so far, and the terminals that they refer to."""
        return [
            rf'string::_: "\"" TEXT? part::_{{0,{REFERENCES}}} "\""',
            # A reference without braces is followed by no digit, and by nothing that begins a part of the result.
            'part::_: ("$$" | braced::_) TEXT? | bare::_ NO_PART?',
            rf"TEXT: /({CHARACTER}){{1,{self._characters}}}/",
            rf'NO_PART: /([^"\\$\x00-\x1f0-9.\[]|{ESCAPE}|{PAIR})({CHARACTER}){{0,{self._characters - 1}}}/',
            *TERMINALS,
            *(f"{name}: {text}" for text, name in self._rules.items()),
        ]

    def value(self, schema: Schema, root: Mapping[str, Any], depth: int = MAX_DEPTH) -> str | None:
        """Return a rule for values of `schema`, and references; None if there are none, or none so flat.

        `root`: the schema that "#/$defs/..." refers to.
        """
        text = json.dumps(schema, sort_keys=False)
        key = f"{depth} {text} {json.dumps(root) if '$ref' in text else ''}"
        if key not in self._values:
            self._values[key] = None  # a union that contains itself adds nothing
            alternatives = list(self._alternatives(schema, root, depth)) if depth else []
            self._values[key] = self.rule(["ref::_", *alternatives]) if alternatives else None
        return self._values[key]

    def rule(self, alternatives: Sequence[str]) -> str:
        """Add a rule, unless there is the same one, and return it as others refer to it."""
        text = " | ".join(dict.fromkeys(each.strip() or '""' for each in alternatives))
        # The library refuses a parameter that a rule does not need.
        return self._rules.setdefault(text, f"rule_{len(self._rules)}{'::_' if '::_' in text else ''}")

    def chain(self, entries: Sequence[NamedValue], first: bool) -> str | None:
        """Return a rule for `entries` in order, with commas between them; optional ones may be left out.

        `first`: whether nothing was written before them. None if something required has no text.
        """
        after, whole = "", [""]  # what may follow an entry, and what may stand where nothing was written
        for entry in reversed(entries):
            if entry.text:
                whole = [f"{entry.text} {after}", *([] if entry.required else whole)]
                after = self.rule([f'", " {entry.text} {after}', *([] if entry.required else [after])])
            elif entry.required:
                return None
        return self.rule(whole if first else [after])

    def _alternatives(self, schema: Schema, root: Mapping[str, Any], depth: int) -> Iterator[str]:
        schema = _flat(schema, root)
        if schema is False:
            return
        schema = {} if schema is True else schema
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                others = {key: value for key, value in schema.items() if key != keyword}
                for each in schema[keyword]:
                    if (merged := _merged(others, _flat(each, root))) is not None:
                        yield from self._alternatives(merged, root, depth)
                return
        if "const" in schema or "enum" in schema:
            choices = [schema["const"]] if "const" in schema else schema["enum"]
            valid = (each for each in choices if problem(each, schema, root) is None)
            yield from (literal(rendered_value(each)) for each in valid)
            return
        types = schema.get("type", [each for each in TYPES if each != "integer"])
        for each in [types] if isinstance(types, str) else types:
            yield from self._of_type(each, schema, root, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[str]:
        if kind == "string":
            yield from self._string(schema)
        elif kind in ("integer", "number"):
            yield from _number(kind, schema)
        elif kind == "boolean":
            yield from ('"true"', '"false"')
        elif kind == "null":
            yield '"null"'
        elif kind == "array":
            depth = depth if schema.keys() & {"items", "prefixItems"} else min(depth, ANY_DEPTH)
            yield from self._array(schema, root, depth - 1)
        elif kind == "object":
            depth = depth if schema.keys() & {"properties", "additionalProperties"} else min(depth, ANY_DEPTH)
            yield from self._object(schema, root, depth - 1)

    def _string(self, schema: Mapping[str, Any]) -> Iterator[str]:
        least, most = _range(schema, "Length", MAX_LENGTH)
        if (least, most) == (0, None):
            yield "string::_"
        elif most is None or least <= most:
            bound = max(least, self._characters) if most is None else most
            yield rf'/"({CHARACTER}|\$\$){{{least},{bound}}}"/'

    def _array(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[str]:
        least, most = _range(schema, "Items")
        places = [self.value(each, root, depth) for each in schema.get("prefixItems", ())[:MAX_ITEMS]]
        first = next((place for place, each in enumerate(places) if each is None), len(places))
        for count in range(least, first + 1 if most is None else min(first, most) + 1):
            yield f'"[" {_joined(places[:count])} "]"'
        item = self.value(schema.get("items", True), root, depth)
        if item is None or first < len(schema.get("prefixItems", ())) or (most is not None and most <= first):
            return
        low = max(least - first, 1)
        high = max(low, REPEATED) if most is None else most - first
        if low <= high:
            repeated = f'(", " {item}){{{low - 1},{high - 1}}}'
            yield f'"[" {_joined([*places[:first], item])} {repeated} "]"'

    def _object(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Iterator[str]:
        least, most = _range(schema, "Properties")
        required = schema.get("required", ())
        names = list(dict.fromkeys([*schema.get("properties", {}), *required]))
        if names:
            if least > len(required) or (most is not None and most < len(names)):
                return
            values = {name: self.value(property_schema(schema, name), root, depth) for name in names}
            entries = [
                NamedValue(f"{literal(f'{literal(name)}: ')} {value}" if value else "", name in required)
                for name, value in values.items()
            ]
            if inner := self.chain(entries, first=True):
                yield f'"{{" {inner} "}}"'
            return
        value = self.value(schema.get("additionalProperties", True), root, depth)
        if least == 0:
            yield '"{}"'
        if value and least <= 1 and most != 0:  # keys may be repeated, so that more cannot be required
            pair = f'KEY ": " {value}'
            yield f'"{{" {pair} (", " {pair}){{0,{(REPEATED if most is None else most) - 1}}} "}}"'


def _joined(rules: Sequence[str | None]) -> str:
    return ' ", " '.join(filter(None, rules))


def _range(schema: Mapping[str, Any], of: str, largest: int | None = None) -> tuple[int, int | None]:
    """Return the bounds `minItems` and `maxItems`; the upper one is None without a bound."""
    least, most = math.ceil(schema.get(f"min{of}", 0)), schema.get(f"max{of}")
    if most is None:
        return max(least, 0), None
    return max(least, 0), math.floor(most if largest is None else min(most, largest))


def _number(kind: str, schema: Mapping[str, Any]) -> Iterator[str]:
    bounds = {
        key: schema[key] for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in schema
    }
    if not bounds:
        yield from ("INTEGER",) if kind == "integer" else ("NUMBER", "SMALL_OR_LARGE")
        return
    low = max([-LARGEST, *(bounds[key] for key in ("minimum", "exclusiveMinimum") if key in bounds)])
    high = min([LARGEST, *(bounds[key] for key in ("maximum", "exclusiveMaximum") if key in bounds)])
    least = math.floor(low) + 1 if bounds.get("exclusiveMinimum") == low else math.ceil(low)
    most = math.ceil(high) - 1 if bounds.get("exclusiveMaximum") == high else math.floor(high)
    if least <= most:
        yield f"%json {json.dumps({'type': 'integer', 'minimum': least, 'maximum': most})}"
    if kind == "number" and low < high:
        yield f"%json {json.dumps({'type': 'number', 'minimum': -LARGEST, 'maximum': LARGEST, **bounds})}"


def _flat(schema: Schema, root: Mapping[str, Any]) -> Schema:
    """Return `schema` without `$ref` and `allOf`; False if its parts cannot be merged."""
    for _ in range(MAX_DEPTH):
        schema = resolved(schema, root)
        if isinstance(schema, bool) or "allOf" not in schema:
            return schema
        parts = schema["allOf"]
        merged: Mapping[str, Any] | None = {key: value for key, value in schema.items() if key != "allOf"}
        for each in parts:
            if merged is not None:
                merged = _merged(merged, resolved(each, root))
        schema = False if merged is None else merged
    return False


def _merged(one: Mapping[str, Any], other: Schema) -> Mapping[str, Any] | None:
    """Return the schema of what matches both; None for what this module cannot express."""
    if isinstance(other, bool):
        return one if other else None
    ours = {key: value for key, value in one.items() if key not in ANNOTATIONS}
    theirs = {key: value for key, value in other.items() if key not in ANNOTATIONS}
    if any(ours[key] != theirs[key] for key in ours.keys() & theirs.keys()):
        return None
    return {**ours, **theirs}
