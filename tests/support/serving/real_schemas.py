"""Schemas as tools, clients and libraries write them, and a generator of others."""

from __future__ import annotations

import random
from typing import Any

TEXT: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}


def tool(required: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def strict(**properties: Any) -> dict[str, Any]:
    return {**tool(tuple(properties), **properties), "additionalProperties": False}


def shape(kind: str, **others: Any) -> dict[str, Any]:
    return tool(("kind",), kind={"const": kind}, **others)


NODE = {
    "type": "object",
    "properties": {"value": TEXT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
}
HAND_WRITTEN: list[dict[str, Any]] = [
    tool(("location",), location=TEXT, unit={"enum": ["celsius", "fahrenheit"], "default": "celsius"}),
    tool(("path",), path=TEXT, head={"type": "number"}, tail={"type": "number"}),
    tool(("query",), query={**TEXT, "minLength": 1, "maxLength": 400}, limit={**COUNT, "maximum": 50}),
    tool(("url",), url={**TEXT, "format": "uri"}, max_length={"type": "integer", "exclusiveMinimum": 0}),
    tool(("to",), to={"type": "array", "items": {**TEXT, "format": "email"}, "minItems": 1}, body=TEXT),
    tool(("when",), when={**TEXT, "format": "date-time"}, zone={**TEXT, "pattern": r"^[A-Z][a-z]+/[A-Z][a-z_]+$"}),
    tool(("id",), id={**TEXT, "format": "uuid"}, tags={"type": "array", "uniqueItems": False, "items": TEXT}),
    tool(("sql",), sql=TEXT, parameters={"type": "object", "additionalProperties": {"type": ["string", "number"]}}),
    tool((), labels={"type": "object", "patternProperties": {"^x-": TEXT}, "additionalProperties": False}),
    tool((), headers={"type": "object", "propertyNames": {"pattern": "^[A-Za-z-]+$"}, "additionalProperties": TEXT}),
    tool((), price={"type": "number", "minimum": 0, "multipleOf": 0.25}, step={"type": "integer", "multipleOf": 5}),
    tool((), ratio={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
    tool((), note={**TEXT, "format": "nonsense"}, colour={**TEXT, "format": "color"}),
    tool((), days={"type": "array", "items": {"enum": ["mon", "tue", "wed"]}, "uniqueItems": True}),
    tool((), name={**TEXT, "maxLength": 3.0, "x-order": 1, "$comment": "c", "examples": ["a"], "readOnly": True}),
    strict(name=TEXT, age={"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}),
    {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    {"$defs": {"node": NODE}, **strict(items={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3})},
    {"oneOf": [shape("circle", r={"type": "number"}), shape("square", side={"type": "number"})]},
    {"anyOf": [shape("circle", r=COUNT), shape("line", to={"type": "array", "prefixItems": [COUNT, COUNT]})]},
    {"oneOf": [TEXT, {"type": "array", "items": TEXT}], "discriminator": {"propertyName": "kind"}},
    {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 10}]},
    {"oneOf": [tool(("a",), a=TEXT), tool(("b",), b=TEXT)]},
    {"allOf": [tool(("a",), a=TEXT), tool(("b",), b=COUNT)], "unevaluatedProperties": False},
    {"allOf": [{"$ref": "#/$defs/base"}, tool(("b",), b=COUNT)], "$defs": {"base": tool(("a",), a=TEXT)}},
    {**tool((), card=TEXT, address=TEXT), "dependentRequired": {"card": ["address"]}},
    {**tool((), card=TEXT), "dependentSchemas": {"card": {"required": ["address"]}}},
    {
        **tool(("country",), country={"enum": ["US", "NL"]}, code=TEXT),
        "if": {"properties": {"country": {"const": "US"}}},
        "then": {"properties": {"code": {"pattern": "^[0-9]{5}$"}}},
        "else": {"properties": {"code": {"pattern": "^[0-9]{4} [A-Z]{2}$"}}},
    },
    {"not": {"required": ["a"]}, "type": "object", "maxProperties": 3},
    {"type": "string", "not": {"enum": ["admin", "root"]}},
    {"type": "string", "pattern": r"^(?=.*\d)(?=.*[a-z])[\da-z]{4,8}$"},
    {"type": "string", "pattern": r"\bword"},
    {"type": "array", "contains": {"const": "x"}, "minContains": 2, "maxContains": 3, "items": {"enum": ["x", "y"]}},
    {"type": "array", "prefixItems": [TEXT, COUNT], "items": False, "minItems": 2},
    {"type": "array", "items": TEXT, "uniqueItems": True},
    {"type": "object", "minProperties": 1, "properties": {"a": TEXT, "b": COUNT}, "additionalProperties": False},
    {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "boolean"}},
    {"enum": [{"a": 1}, [1, 2], "x", None, True, 1.5]},
    {"const": {"type": "ping", "data": [1, {"x": None}]}},
    {"type": ["string", "null"], "enum": ["a", None, 5]},
    {"type": "object", "properties": {"a": True, "b": False}},
    {"$schema": "http://json-schema.org/draft-07/schema#", **tool(("a",), a=TEXT), "additionalProperties": False},
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"p": COUNT},
        "items": {"$ref": "#/definitions/p"},
    },
    {"title": "M", "type": "object", "properties": {"x": {"title": "X", "type": "integer", "default": 3}}},
    {"$id": "https://example.org/a", "$defs": {"b": {"$anchor": "b", **TEXT}}, "properties": {"b": {"$ref": "#b"}}},
]
ANNOTATIONS = [{"title": "T"}, {"description": "d"}, {"default": None}, {"x-order": 3}, {"deprecated": True}, {}]


def generated(seed: int) -> Any:
    """Return a schema whose keywords are drawn at random, most of them for its types."""
    return Generator(random.Random(seed)).schema(3)


class Generator:
    def __init__(self, chance: random.Random):
        self._chance = chance

    def schema(self, depth: int) -> Any:
        chance = self._chance
        if chance.random() < 0.05:
            return chance.random() < 0.8
        kinds = ["string", "integer", "number", "boolean", "null", "array", "object"]
        kind = chance.choice(kinds if depth else kinds[:5])
        made = {"type": kind, **getattr(self, kind, dict)(*([depth] if kind in ("array", "object") else []))}
        made |= chance.choice(ANNOTATIONS)
        if depth and chance.random() < 0.35:
            made |= self.combined(depth - 1)
        if chance.random() < 0.1:
            del made["type"]
        return made

    def some(self, **keywords: Any) -> dict[str, Any]:
        return {key: make() for key, make in keywords.items() if self._chance.random() < 0.35}

    def string(self) -> dict[str, Any]:
        chance = self._chance
        patterns = ["^a", "b$", "^[a-c]+$", r"\d", r"^\w{1,3}$", "^(x|y)z?$", r"^[^\s]+$", "[éß]", r"^\S*\D$", "."]
        return self.some(
            minLength=lambda: chance.randrange(3),
            maxLength=lambda: chance.randrange(2, 6),
            pattern=lambda: chance.choice(patterns),
            format=lambda: chance.choice(["date", "uuid", "nope", "ipv4", "time"]),
            enum=lambda: chance.sample(["a", "b", "ab", "x", "é", '"', "\n", 1], 3),
        )

    def number(self) -> dict[str, Any]:
        chance = self._chance
        return self.some(
            minimum=lambda: chance.choice([-3, 0, 0.5, -1.25]),
            maximum=lambda: chance.choice([3, 10.5, 1, 100]),
            exclusiveMinimum=lambda: chance.choice([-1, 0, 0.1]),
            exclusiveMaximum=lambda: chance.choice([1, 7, 2.5]),
            multipleOf=lambda: chance.choice([1, 2, 3, 0.5, 0.25]),
        )

    integer = number

    def array(self, depth: int) -> dict[str, Any]:
        chance = self._chance
        return self.some(
            items=lambda: self.schema(depth - 1),
            prefixItems=lambda: [self.schema(depth - 1) for _ in range(chance.randrange(3))],
            minItems=lambda: chance.randrange(3),
            maxItems=lambda: chance.randrange(1, 5),
            contains=lambda: self.schema(0),
            uniqueItems=lambda: chance.random() < 0.2,
        )

    def object(self, depth: int) -> dict[str, Any]:
        chance = self._chance
        names, patterns = ["a", "b", "ab", "x-1", "é", "\n", '"'], ["^a", "b$", "^x-", "é"]
        return self.some(
            properties=lambda: {name: self.schema(depth - 1) for name in chance.sample(names, 3)},
            patternProperties=lambda: {each: self.schema(depth - 1) for each in chance.sample(patterns, 2)},
            additionalProperties=lambda: self.schema(0),
            required=lambda: chance.sample(names, 2),
            propertyNames=lambda: chance.choice([{"maxLength": 2}, {"pattern": "^[a-z]"}, {"enum": ["a", "b"]}]),
            minProperties=lambda: chance.randrange(2),
            maxProperties=lambda: chance.randrange(1, 5),
            dependentRequired=lambda: {chance.choice(names): chance.sample(names, 1)},
        )

    def combined(self, depth: int) -> dict[str, Any]:
        def several() -> list[Any]:
            return [self.schema(depth) for _ in range(2)]

        return (
            self.some(anyOf=several, oneOf=several, allOf=several, unevaluatedProperties=lambda: False)
            | ({"if": self.schema(depth), "then": self.schema(depth)} if self._chance.random() < 0.2 else {})
            | ({"not": self.schema(0)} if self._chance.random() < 0.2 else {})
        )
