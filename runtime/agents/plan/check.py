"""Checks of a call against the signature of its tool, and of values against its schema.

The schemas of tools are checked as far as plans need it: types, enumerations, properties, items, unions, references and
bounds. Keywords such as `pattern` and `format` are left to the tool: untrusted patterns can take exponential time, and
references have no value yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from intaglio.errors import UsageError
from intaglio.runtime.agents.plan.plan import ENDINGS, Call, PlanError, Reference, Template, Value, references
from intaglio.runtime.agents.tools.tool import Tool

Schema = Mapping[str, Any] | bool
MAX_STEPS = 300_000  # schemas visited for one argument; those of a server may refer to themselves without end
MAX_NESTED = 150  # schemas within schemas; each takes some frames of Python's stack
SHOWN = 60  # characters of a value in a message
TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, Mapping),
}
BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda value, bound: value >= bound),
    "maximum": ("number", lambda value, bound: value <= bound),
    "exclusiveMinimum": ("number", lambda value, bound: value > bound),
    "exclusiveMaximum": ("number", lambda value, bound: value < bound),
    "minLength": ("string", lambda value, bound: len(value) >= bound),
    "maxLength": ("string", lambda value, bound: len(value) <= bound),
    "minItems": ("array", lambda value, bound: len(value) >= bound),
    "maxItems": ("array", lambda value, bound: len(value) <= bound),
    "minProperties": ("object", lambda value, bound: len(value) >= bound),
    "maxProperties": ("object", lambda value, bound: len(value) <= bound),
}


def check_names(names: Iterable[str]) -> None:
    """Raise `UsageError` if one of the tools' names would end a plan."""
    for name in names:
        if name in ENDINGS:
            raise UsageError(f"tool {name!r}: this name ends a plan. Rename the tool.")


def by_parameter(call: Call, tool: Tool) -> dict[str, Value]:
    """Return the arguments of `call` by the names of the parameters, positional ones in the order of the properties.

    Raises `PlanError` for too many, unknown, repeated and missing ones.
    """
    names = list(tool.properties)
    place = f"call {call.number}, {tool.name}"
    signature = f"{tool.name}({', '.join(name if name in tool.required else f'{name}=...' for name in names)})"
    if len(call.arguments) > len(names):
        raise PlanError(f"{place}: {len(call.arguments)} arguments, expected at most {len(names)}: {signature}.")
    arguments = dict(zip(names, call.arguments, strict=False))
    for name, value in call.keywords.items():
        if name in arguments:
            raise PlanError(f"{place}: the argument {name} is given twice, by its place and by its name.")
        # A JSON schema without additionalProperties allows any; here they are errors of the model.
        if name not in names and tool.parameters.get("additionalProperties", False) is False:
            raise PlanError(f"{place}: no parameter is named {name[:SHOWN]}, expected {signature}.")
        arguments[name] = value
    if missing := [name for name in names if name in tool.required and name not in arguments]:
        raise PlanError(f"{place}: {' and '.join(missing)} missing, expected {signature}.")
    return arguments


def by_name(call: Call, tool: Tool) -> Call:
    """Return `call` with its arguments by name where they are one object of them: `search({"query": "a"})`.

    Unless the first parameter takes an object itself.
    """
    match call.arguments:
        case [dict() as given] if given and not call.keywords and given.keys() <= tool.properties.keys():
            first = next(iter(tool.properties))
            if problem(given, schema_of(tool, first), tool.parameters) is not None:
                return replace(call, arguments=(), keywords=given)
    return call


def check_call(call: Call, tool: Tool, earlier: Sequence[int]) -> None:
    """Check a call of a plan; `earlier`: the numbers of the calls before it.

    Raises `PlanError` for known arguments that do not fit the signature or the schema, and for references to calls that
    are not before it.
    """
    for name, value in by_parameter(call, tool).items():
        place = f"call {call.number}, {tool.name}: {name}"
        if cause := problem(value, schema_of(tool, name), tool.parameters):
            raise PlanError(f"{place} {cause}.")
        for number in references(value):
            if number not in earlier:
                raise PlanError(f"{place} {_no_reference(number, call.number, earlier)}. Write $$ for a dollar sign.")


def schema_of(tool: Tool, name: str) -> Schema:
    """Return the schema of the parameter `name`."""
    schema: Schema = tool.properties.get(name, tool.parameters.get("additionalProperties", True))
    return schema


def problem(value: Value, schema: Schema, root: Mapping[str, Any]) -> str | None:
    """Return why `value` does not match `schema`, such as "is 'a', expected integer"; None if it does.

    A `Reference` matches anything, and a `Template` what a string can. `root`: the schema that "#/$defs/..." refers to.
    """
    return _Check(root).problem(value, schema, "")


def resolved(schema: Schema, root: Mapping[str, Any]) -> Schema:
    """Return the schema that `schema` refers to with `$ref`; True if there is none, and for circles."""
    for _ in range(100):
        if isinstance(schema, bool) or "$ref" not in schema:
            return schema
        target: Any = root
        for key in str(schema["$ref"]).removeprefix("#").split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            target = target.get(key, True) if isinstance(target, Mapping) else True
        schema = target if isinstance(target, Mapping | bool) else True
    return True


def shown(value: Value) -> str:
    """Return a value as messages show it."""
    match value:
        case Reference(number):
            return f"${number}"
        case Template():
            return "a text with references"
        case None | bool():
            return str(value).lower().replace("none", "null")
        case str():
            return repr(value[:SHOWN]) + "..." * (len(value) > SHOWN)
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)}"
    return str(value)[:SHOWN] if isinstance(value, int | float) else f"a {type(value).__name__}"


def _no_reference(number: int, call: int, earlier: Sequence[int]) -> str:
    if number == call:
        return f"refers to its own call with ${number}, expected a call before it"
    known = f"one of {', '.join(f'${each}' for each in earlier[-20:])}" if earlier else "no reference in a first call"
    when = "is not before it" if number > call else "does not exist"
    return f"refers to ${number}, which {when}, expected {known}"


class _Check:
    def __init__(self, root: Mapping[str, Any]):
        self._root = root
        self._steps = self._depth = 0

    def problem(self, value: Value, schema: Schema, path: str) -> str | None:
        self._steps += 1
        if self._steps > MAX_STEPS or self._depth > MAX_NESTED:
            return f"{path}is too complex to check, or its schema refers to itself without end"
        self._depth += 1
        try:
            return self._problem(value, resolved(schema, self._root), path)
        finally:
            self._depth -= 1

    def _problem(self, value: Value, schema: Schema, path: str) -> str | None:
        if schema is False:
            return f"{path}is {shown(value)}, expected nothing here"
        if isinstance(schema, bool) or isinstance(value, Reference):
            return None
        return (
            self._type(value, schema, path)
            or self._choice(value, schema, path)
            or self._bound(value, schema, path)
            or self._union(value, schema, path)
            or self._inside(value, schema, path)
        )

    def _type(self, value: Value, schema: Mapping[str, Any], path: str) -> str | None:
        types = schema.get("type", [])
        types = [types] if isinstance(types, str) else types
        known = "" if isinstance(value, Template) else value
        if not types or any(TYPES[each](known) for each in types if each in TYPES):
            return None
        return f"{path}is {shown(value)}, expected {' or '.join(map(str, types))}"

    def _choice(self, value: Value, schema: Mapping[str, Any], path: str) -> str | None:
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices is None or any(_equal(value, each) for each in choices):
            return None
        return f"{path}is {shown(value)}, expected {' or '.join(shown(each) for each in choices[:20])}"

    def _bound(self, value: Value, schema: Mapping[str, Any], path: str) -> str | None:
        if BOUNDS.keys().isdisjoint(schema):
            return None
        for keyword, (kind, holds) in BOUNDS.items():
            bound = schema.get(keyword)
            if TYPES["number"](bound) and TYPES[kind](value) and not holds(value, bound):
                return f"{path}is {shown(value)}, expected {keyword} {bound}"
        return None

    def _union(self, value: Value, schema: Mapping[str, Any], path: str) -> str | None:
        for each in schema.get("allOf", ()):
            if cause := self.problem(value, each, path):
                return cause
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                causes = [self.problem(value, each, path) for each in schema[keyword]]
                if None not in causes:
                    return " or ".join(list(dict.fromkeys(filter(None, causes)))[:3]) or f"{path}matches nothing"
        return None

    def _inside(self, value: Value, schema: Mapping[str, Any], path: str) -> str | None:
        if isinstance(value, list | tuple):
            for place, each in enumerate(value):
                if cause := self.problem(each, item_schema(schema, place), f"{path}[{place}] "):
                    return cause
        if isinstance(value, Mapping):
            for name in schema.get("required", ()):
                if name not in value:
                    return f"{path}has no {name!r}, expected an object with it"
            for name, each in value.items():
                if cause := self.problem(each, property_schema(schema, name), f"{path}[{str(name)[:SHOWN]!r}] "):
                    return cause
        return None


def item_schema(schema: Mapping[str, Any], place: int) -> Schema:
    """Return the schema of an item of an array."""
    first = schema.get("prefixItems", ())
    found: Schema = first[place] if place < len(first) else schema.get("items", True)
    return found


def property_schema(schema: Mapping[str, Any], name: str) -> Schema:
    """Return the schema of a property of an object."""
    found: Schema = schema.get("properties", {}).get(name, schema.get("additionalProperties", True))
    return found


def _equal(one: Value, other: Any) -> bool:
    """Whether two values of JSON are equal, or may be: 1 and 1.0 are, 1 and true are not."""
    match one:
        case Reference():
            return True
        case Template():
            return isinstance(other, str)
        case list() | tuple():
            same = isinstance(other, list) and len(one) == len(other)
            return same and all(map(_equal, one, other))
        case dict():
            same = isinstance(other, Mapping) and one.keys() == other.keys()
            return same and all(_equal(each, other[key]) for key, each in one.items())
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
