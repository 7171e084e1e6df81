"""Checks of values against schemas: like jsonschema, bounded, and with references."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agent_plans import JSON, made
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from intaglio.errors import UsageError
from intaglio.runtime.agents.plan.check import problem
from intaglio.runtime.agents.plan.plan import Reference, Template

DEFINITIONS = {"tree": {"type": "object", "additionalProperties": {"$ref": "#/$defs/tree"}}, "a/b~": {"type": "string"}}
SIMPLE = st.sampled_from(
    [
        True,
        False,
        {},
        {"type": "string"},
        {"type": "string", "minLength": 2, "maxLength": 4},
        {"type": "integer", "minimum": 0, "exclusiveMaximum": 5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 5.5},
        {"type": ["boolean", "null"]},
        {"enum": ["a", 1, None, [1]]},
        {"const": True},
        {"const": 0},
        {"type": "array", "minItems": 1, "maxItems": 2},
        {"type": "object", "minProperties": 1, "maxProperties": 2},
        {"$ref": "#/$defs/tree"},
        {"$ref": "#/$defs/a~1b~0"},
    ]
)
KEYS = st.sampled_from(["a", "b", "$1"])


def has_whole_float(value: Any) -> bool:
    """Whether a number such as 3.0 is in it, which is an integer for jsonschema, and none in a plan."""
    if isinstance(value, list | dict):
        return any(map(has_whole_float, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value.is_integer()


SCHEMAS = st.recursive(
    SIMPLE,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["array", "object"]),
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "properties": st.dictionaries(KEYS, inner, max_size=2),
            "required": st.lists(KEYS, unique=True, max_size=2),
            "additionalProperties": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=4,
)
VALUES = JSON.filter(lambda value: not has_whole_float(value)) | st.recursive(
    st.sampled_from([None, True, 0, 1, 5, 0.5, "a", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=examples(300))
@given(schema=SCHEMAS, value=VALUES)
def test_value_checks_match_jsonschema(schema: Any, value: Any) -> None:
    root = {"$defs": DEFINITIONS}
    whole = {**root, "properties": {"it": schema}}
    cause = problem(value, schema, root)
    assert (cause is None) == Draft202012Validator(whole).is_valid({"it": value})
    assert cause is None or "\n" not in cause


def test_float_is_not_an_integer() -> None:
    assert problem(3.0, {"type": "integer"}, {}) == "is 3.0, expected integer"


@pytest.mark.parametrize(
    ("schema", "reference", "template"),
    [
        ({"type": "string"}, True, True),
        ({"type": "integer"}, True, False),
        ({"enum": ["a", 1]}, True, True),
        ({"enum": [1]}, True, False),
        ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, True, True),
        ({"type": "array"}, True, False),
        (False, False, False),
    ],
)
def test_references_match_if_some_result_could(schema: Any, reference: bool, template: bool) -> None:
    assert (problem(Reference(1), schema, {}) is None) == reference
    assert (problem(Template(("a", Reference(1))), schema, {}) is None) == template


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/none"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"const": 1}]}},
    ],
)
def test_recursive_schema_takes_bounded_time(schema: Any) -> None:
    value: Any = 0
    for _ in range(30):
        value = [value]
    started = time.process_time()
    problem(value, schema, schema)
    assert time.process_time() - started < 5


def test_item_references_match_if_an_alternative_has_items() -> None:
    schema = {"enum": [["a", 1], {"b": "x"}]}
    assert problem([Template(("a", Reference(1))), Reference(2)], schema, {}) is None
    assert problem({"b": Reference(2)}, schema, {}) is None
    assert problem([Reference(1)], schema, {}) == "is a list of 1, expected a list of 2 or an object of 1"


@pytest.mark.parametrize(
    ("schema", "cause"),
    [
        ([], r"properties: it is \[\], expected a JSON schema"),
        ({"type": "file"}, "properties: it: type is 'file', expected one or more of string"),
        ({"type": [["string"]]}, "type is"),
        ({"enum": "ab"}, "enum is 'ab', expected a list"),
        ({"minimum": "3"}, "minimum is '3', expected a number"),
        ({"exclusiveMinimum": True}, "exclusiveMinimum is True, expected a number"),
        ({"items": [{}]}, r"items is \[{}\], expected a JSON schema"),
        ({"anyOf": {"a": {}}}, "anyOf is .* expected a list"),
        ({"anyOf": [{"allOf": [3]}]}, "anyOf: allOf is 3, expected a JSON schema"),
        ({"properties": []}, "properties is .* expected an object"),
        ({"properties": {"a": None}}, "properties: a is None, expected a JSON schema"),
        ({"required": [1]}, "required is .* expected a list of names"),
        ({"$ref": 3}, "a reference such as"),
    ],
)
def test_invalid_parameter_schemas_are_rejected_in_one_line(schema: Any, cause: str) -> None:
    with pytest.raises(UsageError, match=rf"^tool 'take': parameters: [^\n]*{cause}[^\n]*$"):
        made("take", {"it": schema}, [])


def test_too_deeply_nested_schema_is_rejected() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(UsageError, match="nested more than 64 deep"):
        made("take", {"it": schema}, [])
