from typing import Any

import pytest

from intaglio.runtime.agents.call_text import call_text
from intaglio.runtime.agents.plan import Call, Reference, Template


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", '"plain"'),
        ('5 $ "now"\n', r'"5 $$ \"now\"\n"'),
        ("größer", '"größer"'),
        (Reference(12), "$12"),
        (Template(("year ", Reference(1), "2, $5")), '"year ${1}2, $$5"'),
        ([1, Reference(2), ["a"]], '[1, $2, ["a"]]'),
        ({"a": {"b": Reference(3)}, "c d": None}, '{"a": {"b": $3}, "c d": null}'),
        ([True, 1.5, -3], "[true, 1.5, -3]"),
    ],
)
def test_values_are_written_as_a_plan_has_them(value: Any, text: str) -> None:
    assert call_text(Call(1, "tool", (value,))) == f"tool({text})"
    assert call_text(Call(1, "tool", (0,), {"key": value})) == f"tool(0, key={text})"


def test_a_call_without_arguments_keeps_its_parentheses() -> None:
    assert call_text(Call(7, "today")) == "today()"
