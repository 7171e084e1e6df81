"""Calls in tags: strings are streamed, other values have the type of the schema, damaged calls keep what is certain."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_calls import NAMES, TOOLS, VALUES, arguments_in, parsed

from intaglio.runtime.generation.tool_calls.events import ArgumentsPiece, CallEnded, CallStarted
from intaglio.runtime.generation.tool_calls.parser import ToolCallParser
from intaglio.runtime.generation.tool_calls.qwen_coder import QWEN_CODER


def test_arguments_are_reported_once_certain() -> None:
    pieces = ["<tool_call>\n<function=weather>\n<para", "meter=city>\nU", "lm\n</", "x\n</parameter><parameter=days>3"]
    parser = ToolCallParser(QWEN_CODER, TOOLS)
    found = [parser.feed(piece) for piece in [*pieces, "\n</parameter>", "</function>"]]
    assert isinstance(found[0][0], CallStarted) and len(found[0]) == 1
    assert found[1:] == [
        [ArgumentsPiece(0, '{"city": "U')],
        [ArgumentsPiece(0, "lm")],
        [ArgumentsPiece(0, '\\n</x", "days": ')],
        [ArgumentsPiece(0, "3")],
        [ArgumentsPiece(0, "}"), CallEnded(0)],
    ]
    assert parser.finish() == []


@given(arguments=st.dictionaries(NAMES, VALUES, max_size=4), data=st.data())
def test_arguments_are_read_as_templates_write_them(arguments: dict[str, Any], data: st.DataObject) -> None:
    text, properties = "", {}
    for name, value in arguments.items():
        properties[name] = {"type": "string"} if isinstance(value, str) else {"not": {"type": "string"}}
        # The template of Qwen3-Coder writes constants as Python does, the one of Qwen3.5 as JSON has them.
        plain = isinstance(value, str) or (not isinstance(value, list | dict) and data.draw(st.booleans()))
        text += f"<parameter={name}>\n{value if plain else json.dumps(value)}\n</parameter>\n"
    schema = {"type": "object", "properties": properties}
    call = f"<tool_call>\n<function=t>\n{text}</function>\n</tool_call>"
    assert arguments_in(QWEN_CODER, call, schema) == arguments


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=\n</tool_call>",
        "<tool_call>\n<function=weather\n</tool_call>",
        '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
        "<function=weather>\n</function>",
    ],
)
def test_invalid_call_is_content(text: str) -> None:
    assert parsed(QWEN_CODER, [text]) == (text, [])


def test_damaged_call_keeps_its_parameters() -> None:
    call = "<tool_call>\n<function=weather>\nx <parameter=days>3 or 4</parameter> and\n</tool_call>\n"
    found = [("weather", '{"days": "3 or 4"}', True)]
    assert parsed(QWEN_CODER, [f"<tool_call>{call}{call}"]) == ("<tool_call>", found * 2)
    deep = "[" * 10**5
    assert parsed(QWEN_CODER, [call.replace("3 or 4", deep)]) == ("", [("weather", f'{{"days": "{deep}"}}', True)])
    cut = "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</par"
    assert parsed(QWEN_CODER, [cut]) == ("", [("weather", '{"city": "Ulm', False)])
