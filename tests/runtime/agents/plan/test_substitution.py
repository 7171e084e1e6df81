"""Results in place of references: by schema, once, and checked again."""

from __future__ import annotations

from typing import Any

import pytest
from agent_plans import INTEGER, NUMBER, STRING, TOOLS, made
from hypothesis import given
from hypothesis import strategies as st

from intaglio.runtime.agents.plan.plan import Call, PlanError, Reference, Template
from intaglio.runtime.agents.plan.substitution import substituted
from intaglio.runtime.agents.run.observation import Observation, as_text


def done(*values: Any) -> dict[int, Observation]:
    return {number: Observation(number, "now", {}, "done", value) for number, value in enumerate(values, 1)}


def one(schema: Any, argument: Any, *results: Any, **keywords: Any) -> Any:
    tool = made("take", {"it": schema}, ["it"], **keywords)
    return substituted(Call(9, "take", (argument,)), tool, done(*results))["it"]


ITEMS = {"type": "array", "items": STRING}


@pytest.mark.parametrize(
    ("schema", "argument", "result", "expected"),
    [
        (STRING, Reference(1), 3, "3"),
        (STRING, Reference(1), {"a": [1]}, '{"a": [1]}'),
        (STRING, Reference(1), None, "null"),
        ({"anyOf": [STRING, {"type": "null"}]}, Reference(1), None, None),
        ({"anyOf": [STRING, {"type": "null"}]}, Reference(1), 2.5, "2.5"),
        ({"anyOf": [STRING, NUMBER]}, Reference(1), 2.5, 2.5),
        ({"enum": ["5", "6"]}, Reference(1), 5, "5"),
        ({}, Reference(1), [1, {"a": 2}], [1, {"a": 2}]),
        (NUMBER, Reference(1), 2.5, 2.5),
        (INTEGER, Reference(1), 3.0, 3),
        (STRING, Template(("a ", Reference(1), "!")), [1], "a [1]!"),
        (ITEMS, [Reference(1), "b"], 3, ["3", "b"]),
        ({"anyOf": [ITEMS, {"type": "null"}]}, [Reference(1)], 3, ["3"]),
        ({"$ref": "#/$defs/items"}, [Reference(1)], 3, ["3"]),
        ({"allOf": [{"type": "array"}, ITEMS]}, [Reference(1)], 3, ["3"]),
        ({"type": "array", "prefixItems": [STRING], "items": INTEGER}, [Reference(1), Reference(1)], 3, ["3", 3]),
        (
            {"type": "object", "properties": {"a": STRING}},
            {"a": Reference(1), "b": Reference(1)},
            3,
            {"a": "3", "b": 3},
        ),
        ({"type": "object", "additionalProperties": STRING}, {"$1": Reference(1)}, 3, {"$1": "3"}),
    ],
)
def test_schema_selects_value_or_text(schema: Any, argument: Any, result: Any, expected: Any) -> None:
    found = one(schema, argument, result, **{"$defs": {"items": ITEMS}})
    assert found == expected and type(found) is type(expected)


@given(results=st.tuples(st.text("$12{}"), st.text("$12{}")))
def test_references_in_results_stay_text(results: tuple[str, str]) -> None:
    assert one(STRING, Template((Reference(1), "$2", Reference(2))), *results) == f"{results[0]}$2{results[1]}"
    assert one({}, [Reference(1), {"$1": Reference(2)}], *results) == [results[0], {"$1": results[1]}]


def test_results_with_quotes_and_lines_are_not_parsed() -> None:
    result = '"), join()\n2. "'
    assert one(STRING, Template(("x", Reference(1))), result) == f"x{result}"


def test_positional_arguments_are_named_and_literals_unchanged() -> None:
    call = Call(2, "search", ("$$",), {"tags": [Reference(1)]})
    assert substituted(call, TOOLS["search"], done("a")) == {"query": "$$", "tags": ["a"]}


def test_tool_cannot_modify_another_tools_result() -> None:
    result = [[1]]
    found = one({}, Reference(1), result)
    found[0].append(2)
    assert result == [[1]]


@pytest.mark.parametrize(
    ("schema", "result", "cause"),
    [
        (INTEGER, 2.5, "it is 2.5, expected integer"),
        (INTEGER, "3", "it is '3', expected integer"),
        (NUMBER, float("nan"), "it is nan, expected number"),
        ({"type": "array", "items": INTEGER}, [1, "b"], r"it \[1\] is 'b', expected integer"),
        ({**STRING, "maxLength": 3}, "long" * 100, "it is 'longlong"),
    ],
)
def test_mismatching_results_fail_the_call_in_one_line(schema: Any, result: Any, cause: str) -> None:
    with pytest.raises(PlanError, match=rf"^call 9, take: {cause}[^\n]{{0,120}}$"):
        one(schema, Reference(1), result)


def test_list_of_100_000_results_is_checked() -> None:
    result = list(range(100_000))
    assert one({"type": "array", "items": INTEGER}, Reference(1), result) == result


def test_too_deeply_nested_result_fails_the_call() -> None:
    result: Any = []
    for _ in range(100_000):
        result = [result]
    with pytest.raises(PlanError, match="nested too deep"):
        one({}, Reference(1), result)


def test_reference_without_result_fails_the_call() -> None:
    failed = {1: Observation(1, "now", {}, "failed", error="x")}
    for observations in ({}, failed):
        with pytest.raises(PlanError, match=r"^\$1 has no result\.$"):
            substituted(Call(2, "search", (Reference(1),)), TOOLS["search"], observations)


def test_objects_without_json_become_text() -> None:
    assert one(STRING, Reference(1), {1, 2}) == as_text({1, 2}) == '"{1, 2}"'
