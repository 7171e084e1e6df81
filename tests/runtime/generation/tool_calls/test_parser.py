"""Tool calls in streamed text: events are independent of piece boundaries, and no text is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from written_calls import parsed, written_calls

from intaglio.runtime.generation.tool_calls.events import (
    ArgumentsPiece,
    CallEnded,
    CallStarted,
    ContentPiece,
    ToolEvent,
)
from intaglio.runtime.generation.tool_calls.formats import FORMATS, HERMES, LLAMA, MISTRAL
from intaglio.runtime.generation.tool_calls.json_calls import JsonCalls
from intaglio.runtime.generation.tool_calls.parser import ToolCallParser
from intaglio.runtime.generation.tool_calls.pythonic import PYTHONIC
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat

MARKERS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|python_start|>"]
FRAGMENTS = [
    *MARKERS,
    *('"name"', '"arguments"', '"parameters"', '"id"', '"weather"', '"we\\"ather\\\\"', ": ", ", ", "{", "}", "[", "]"),
    *("{}", '{"a": [1, {"b": "}"}]}', "null", "1.5", "<", "<tool", "[TOOL", "\\", '"', "\n", " ", "text", ";"),
]
TAGS = ["<tool_call>", "</tool_call>", "<function=weather>", "<function=", "<parameter=city>", "<parameter=days>", ">"]
TAGS += ["\n</parameter>", "</parameter>", "</function>", "</", "\n", "Ulm", '"', "3", "{}", "True", "text"]
PYTHON = ["<|python_start|>", "<|python_end|>", "[", "]", "weather(", "now()", "city=", "days=", "'", '"', "\\", "Ulm"]
PYTHON += ["3", "None", "1e9", "{", "}", ":", ",", ", ", ")", " ", "\n", "text", "'a': "]
styles = pytest.mark.parametrize("style", FORMATS, ids=lambda style: style.name)
texts = st.one_of(*(st.lists(st.sampled_from(each), max_size=20).map("".join) for each in (FRAGMENTS, TAGS, PYTHON)))
words = st.one_of(st.text(max_size=6), st.sampled_from([*MARKERS, '"', "\\", "}", "{", '\\"']))
objects = st.dictionaries(
    words,
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), words),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
        max_leaves=4,
    ),
    max_size=3,
)


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({*(place % (len(text) + 1) for place in places), len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@styles
@example(text="<|python_start|>weather(}", places=[])  # a call without an argument's name: it must not be read for ever
@given(text=texts, places=st.lists(st.integers(0, 400), max_size=8))
def test_events_are_independent_of_piece_boundaries(style: ToolCallFormat, text: str, places: list[int]) -> None:
    whole = parsed(style, [text])
    assert parsed(style, cut(text, places)) == whole
    assert parsed(style, list(text)) == whole
    if not whole[1]:
        assert whole[0] == text, "without a call all of the text is content"
    if not isinstance(style.syntax, JsonCalls):  # whose arguments are what the model writes
        assert all(isinstance(json.loads(arguments), dict) for _, arguments, ended in whole[1] if ended)


@pytest.mark.parametrize("style", [HERMES, LLAMA, MISTRAL], ids=lambda style: style.name)
@given(
    content=st.sampled_from(["", "Sure.", "a < b\n[TOOL"]),
    calls=st.lists(st.tuples(st.sampled_from(["weather", "now"]), objects), min_size=1, max_size=3),
    places=st.lists(st.integers(0, 2000), max_size=6),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
    order=st.permutations([0, 1, 2]),
)
def test_json_calls_with_members_in_any_order_are_parsed(
    style: ToolCallFormat,
    content: str,
    calls: list[tuple[str, dict[str, Any]]],
    places: list[int],
    indent: int | None,
    ascii_only: bool,
    order: list[int],
) -> None:
    if style.between is None:
        calls = calls[:1]
    assert isinstance(style.syntax, JsonCalls)
    members = [[("name", name), (style.syntax.key, given), ("id", "abc,}")] for name, given in calls]
    bodies = [
        json.dumps(dict(each[place] for place in order), indent=indent, ensure_ascii=ascii_only) for each in members
    ]
    text = f"{content}\n{style.opening}{style.before}{(style.between or '').join(bodies)}{style.after}\n"
    found, read = parsed(style, cut(text, places))
    assert found == content
    assert [(name, json.loads(arguments), ended) for name, arguments, ended in read] == [
        (name, given, True) for name, given in calls
    ]


def events(style: ToolCallFormat, *pieces: str) -> list[list[ToolEvent]]:
    parser = ToolCallParser(style, {"weather": {}})
    return [parser.feed(piece) for piece in pieces] + [parser.finish()]


def test_text_and_arguments_are_reported_once_certain() -> None:
    found = events(
        HERMES,
        "Let me ",
        "see <b",
        " <tool",
        '_call>\n{"name": "weather", "arg',
        'uments": {"ci',
        'ty": 1}',
        "}\n</tool_",
    )
    assert found[:3] == [[ContentPiece("Let me")], [ContentPiece(" see <b")], []]
    assert found[3] == []
    started, piece = found[4]
    assert isinstance(started, CallStarted)
    assert (started.index, started.name, piece) == (0, "weather", ArgumentsPiece(0, '{"ci'))
    assert found[5:] == [[ArgumentsPiece(0, 'ty": 1}')], [CallEnded(0)], []]


def test_truncated_call_does_not_end() -> None:
    for text in '{"city": "U', '{"city": "Ulm"}', '{"city": "Ulm"}, ':
        (started, piece), rest = events(HERMES, '<tool_call>{"name": "weather", "arguments": ' + text)
        assert isinstance(started, CallStarted)
        assert piece == ArgumentsPiece(0, text.rstrip(", "))
        assert rest == []


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nnot JSON\n</tool_call>",
        '<tool_call>{"name": "weather"}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "  <tool_call>",
        "<tool_call><tool_cal",
        " \n ",
        "",
    ],
)
def test_invalid_call_becomes_content_with_its_marker(text: str) -> None:
    assert parsed(HERMES, [text]) == (text, [])


def test_call_after_an_invalid_one_is_parsed() -> None:
    call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    assert parsed(HERMES, ["<tool_call>" + call]) == ("<tool_call>", [("weather", "{}", True)])
    assert parsed(HERMES, [call.removesuffix("</tool_call>") + call])[1] == [("weather", "{}", True)] * 2
    assert parsed(HERMES, [call + "\nand\n" + call]) == ("\nand", [("weather", "{}", True)] * 2)


def test_bare_json_is_a_call_only_if_it_names_a_tool() -> None:
    call = '\n{"name": "weather", "parameters": {"city": "Ulm"}}'
    assert parsed(LLAMA, [call]) == ("", [("weather", '{"city": "Ulm"}', True)])
    assert parsed(LLAMA, [call.replace("weather", "Bob")]) == (call.replace("weather", "Bob"), [])
    assert parsed(LLAMA, ["Sure: " + call]) == ("Sure: " + call, [])
    assert parsed(LLAMA, ["<|python_tag|>" + call.replace("weather", "Bob")])[1] == [("Bob", '{"city": "Ulm"}', True)]


def test_list_of_calls_in_tags_is_parsed() -> None:
    body = '[{"name": "weather", "arguments": {}}, {"name": "now", "arguments": {}}]'
    assert parsed(HERMES, [f"<tool_call>{body}</tool_call>"]) == ("", [("weather", "{}", True), ("now", "{}", True)])


def test_call_ids_have_the_length_templates_check() -> None:
    (started, *_), *_ = events(MISTRAL, '[TOOL_CALLS][{"name": "weather", "arguments": {}}]')
    assert isinstance(started, CallStarted)
    assert len(started.id) == 9 and started.id.isalnum()


def test_lone_surrogate_in_a_name_is_replaced() -> None:
    (_, calls) = parsed(HERMES, ['<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'])
    assert calls == [("?", "{}", True)]


def written(style: ToolCallFormat, opening: bool = True) -> str:
    """Two calls in a model's format, or one if the format allows no more."""
    names = ["weather"] if style.between is None else ["weather", "now"]
    return written_calls(style, *((name, {"city": "a<b[c\\n", "days": 3}) for name in names), opening=opening)


@styles
@pytest.mark.parametrize("content", ["", "Sure.", "a < b\n[TOOL"])
def test_markup_of_a_truncated_call_is_not_content(style: ToolCallFormat, content: str) -> None:
    text = f"{content}\n{written(style)}\n"
    whole = parsed(style, [text])[1]
    for place in range(len(content) + 1, len(text) + 1):
        found, calls = parsed(style, [text[:place]], cut=True)
        assert found.rstrip() == content
        for (name, arguments, ended), call in zip(calls, whole, strict=False):
            assert name == call[0]
            assert call[1].startswith(arguments)
            assert not ended or arguments == call[1]


@pytest.mark.parametrize("style", [LLAMA, PYTHONIC], ids=lambda style: style.name)
def test_markup_of_a_truncated_markerless_call_is_not_content(style: ToolCallFormat) -> None:
    text = written(style, opening=False)
    assert all(parsed(style, [text[:place]], cut=True)[0] == "" for place in range(len(text) + 1))


@styles
@given(text=texts, places=st.lists(st.integers(0, 400), max_size=8), following=st.sampled_from(["", *FRAGMENTS]))
def test_truncation_loses_only_a_possible_call_start(
    style: ToolCallFormat, text: str, places: list[int], following: str
) -> None:
    whole = parsed(style, [text], cut=True, following=following)
    assert parsed(style, cut(text, places), cut=True, following=following) == whole
    content, calls = whole
    if not calls:
        lost = text.removeprefix(content).lstrip()
        assert text.startswith(content)
        assert not lost or lost.startswith((style.first, style.opening)) or style.opening.startswith(lost)


@styles
def test_stop_string_decides_about_a_partial_marker(style: ToolCallFormat) -> None:
    begun = style.opening[:1]
    for following, content in (("1", f"a {begun}"), (style.opening[1:], "a"), (style.opening[1:3], "a"), ("", "a")):
        assert parsed(style, [f"a {begun}"], cut=True, following=following) == (content, [])
    assert parsed(style, [f"a {begun}"]) == (f"a {begun}", []), "the model ended the text"


def test_parser_reports_text_that_ends_within_a_call() -> None:
    cases = {
        "Sure. <": True,
        "Sure. <tool_call>": True,
        '<tool_call>{"name": "weather"': True,
        '<tool_call>{"name": "weather", "arguments": {': True,
        '<tool_call>{"name": "weather", "arguments": {}': True,
        '<tool_call>{"name": "weather", "arguments": {}}': False,
        '<tool_call>{"name": "weather", "arguments": {}}\n</tool_': False,
        '<tool_call>{"name": "weather", "arguments": {}}\n</tool_call>\n<tool_': True,
        "Sure.": False,
        "<b": False,
        "": False,
    }
    for text, expected in cases.items():
        parser = ToolCallParser(HERMES, {"weather": {}})
        parser.feed(text)
        parser.finish(cut=True)
        assert parser.cut_off == expected, text
