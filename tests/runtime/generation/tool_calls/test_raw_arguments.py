"""Raw text as JSON: a string where the schema has strings, another value where it is valid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from intaglio.runtime.generation.tool_calls.qwen_coder import as_json, is_text


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "3", "3"),
        ({"type": "string"}, " null\n", " null\n"),
        ({"enum": ["3", "x"]}, "3", "3"),
        ({"$ref": "#/$defs/text"}, "3", "3"),
        ({"type": "integer"}, " 3", 3),
        ({"type": "integer", "maximum": 2}, "3", 3),
        ({"type": "integer"}, "three", "three"),
        ({"type": "integer"}, "NaN", "NaN"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "3", "3"),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 9}]}, "9", 9),
        ({"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 9}]}, "10", "10"),
        ({"type": "object"}, '{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ({"type": "array"}, "[1, 2", "[1, 2"),
        ({"type": "array"}, "[" * 10**5 + "]" * 10**5, "[" * 10**5 + "]" * 10**5),
        ({}, '"x"', '"x"'),
        ({}, "[1]", [1]),
    ],
)
def test_argument_has_the_type_of_its_schema(schema: dict[str, Any], text: str, expected: Any) -> None:
    every = {"type": "object", "properties": {"x": schema}, "$defs": {"text": {"type": "string"}}}
    assert json.loads(as_json(every, "x", text)) == expected
    assert is_text(every, "x") == (schema in ({"type": "string"}, {"enum": ["3", "x"]}, {"$ref": "#/$defs/text"}))


def test_unknown_argument_is_json_if_it_can_be() -> None:
    closed = {"type": "object", "additionalProperties": False}
    for schema in {}, closed:
        assert [as_json(schema, "x", text) for text in ("3", "x", "None")] == ["3", '"x"', "null"]
        assert not is_text(schema, "x")
