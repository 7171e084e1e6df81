"""Checks of values against schemas: as jsonschema does, bounded, and with references."""

from __future__ import annotations

import time
from typing import Any

import pytest
from agent_plans import JSON
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from intaglio.runtime.agents.plan import Reference, Template
from intaglio.runtime.agents.plan_check import problem

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
VALUES = JSON | st.recursive(
    st.sampled_from([None, True, 0, 1, 5, 0.5, "a", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=300)
@given(schema=SCHEMAS, value=VALUES)
def test_values_are_judged_as_jsonschema_judges_them(schema: Any, value: Any) -> None:
    root = {"$defs": DEFINITIONS}
    whole = {**root, "properties": {"it": schema}}
    cause = problem(value, schema, root)
    assert (cause is None) == Draft202012Validator(whole).is_valid({"it": value})
    assert cause is None or "\n" not in cause


def test_a_float_is_no_integer_as_functions_of_python_take_it() -> None:
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
def test_what_is_not_known_yet_passes_where_some_result_could(schema: Any, reference: bool, template: bool) -> None:
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
def test_a_schema_that_refers_to_itself_takes_a_bounded_time(schema: Any) -> None:
    value: Any = 0
    for _ in range(30):
        value = [value]
    started = time.process_time()
    problem(value, schema, schema)
    assert time.process_time() - started < 5
