"""Calls as in Python: literals mean what they mean in Python; what is not a literal is never evaluated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_calls import NAMES, TOOLS, VALUES, arguments_in, parsed

from intaglio.runtime.generation.tool_calls.events import ArgumentsPiece, CallEnded, CallStarted
from intaglio.runtime.generation.tool_calls.parser import ToolCallParser
from intaglio.runtime.generation.tool_calls.pythonic import PYTHONIC


def test_arguments_are_reported_once_certain() -> None:
    parser = ToolCallParser(PYTHONIC, TOOLS)
    found = [parser.feed(piece) for piece in ["[wea", "ther(ci", "ty='U", "lm'", ", days=", "3)", "]"]]
    assert found[:4] == [[]] * 4
    assert isinstance(found[4][0], CallStarted)
    assert found[4][1:] == [ArgumentsPiece(0, '{"city": "Ulm"')]
    assert found[5:] == [[ArgumentsPiece(0, ', "days": 3}'), CallEnded(0)], []]


@given(arguments=st.dictionaries(NAMES, VALUES, max_size=4))
def test_literals_are_read_as_python_reads_them(arguments: dict[str, Any]) -> None:
    call = f"[t({', '.join(f'{name}={value!r}' for name, value in arguments.items())})]"
    assert arguments_in(PYTHONIC, call) == arguments


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"""'\x41\u00e9\U0001f600\ud83d\ude00\'\"\q\0'""", "A\u00e9\U0001f600\U0001f600'\"\\q\0"),
        ("'\\ud800'", "\ufffd"),
        ("'a\nb'", "a\nb"),
        ("[1, 'x',]", [1, "x"]),
        ("{ 'a' : None , }", {"a": None}),
        ("true", True),
        ("-1.5e-3", -1.5e-3),
        ("1e999", float("inf")),
    ],
)
def test_spelling_of_literals(literal: str, value: Any) -> None:
    assert arguments_in(PYTHONIC, f"[ t( x = {literal} , ) ]") == {"x": value}


@pytest.mark.parametrize(
    "text",
    [
        "<|python_start|>weather[]",
        "[weather(Ulm)]",
        "[weather(city=Ulm)]",
        "[weather(city='U' 'lm')]",
        "[weather(days=1 + 2)]",
        "[weather(city=f'{x}')]",
        "[weather(days={1: 2})]",
        "[weather(days=[1)]",
        f"[weather(days={'[' * 10**5})]",
        "[other(city='Ulm')]",
        "[1, 2]",
        "Call: [weather(city='Ulm')]",
    ],
)
def test_invalid_call_is_content(text: str) -> None:
    assert parsed(PYTHONIC, [text]) == (text, [])


def test_call_that_is_damaged_after_an_argument_never_ends() -> None:
    assert parsed(PYTHONIC, ["[weather(days=3, city=Ulm)] Well"]) == ("", [("weather", '{"days": 3', False)])
