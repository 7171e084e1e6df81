"""Requests with tools: validation, the format of a template, and the texts that the grammar allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from written_calls import parsed, written_calls

from intaglio.errors import EngineError, UsageError
from intaglio.runtime.generation.answer import answers_for
from intaglio.runtime.generation.parts import Part
from intaglio.runtime.generation.tool_calls.calling import tool_calling
from intaglio.runtime.generation.tool_calls.formats import FORMATS, format_of
from intaglio.runtime.generation.tool_calls.json_calls import JsonCalls
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat
from intaglio.runtime.sampling.grammar import Grammar, GrammarConstraint

END = 0  # <|endoftext|>
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"type": "string"}},
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now", "description": "The time"}}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
CALL = ("weather", {"city": 'Ulm {x} "y"', "days": 3})
styles = pytest.mark.parametrize("style", FORMATS, ids=lambda style: style.name)
# How a tokenizer can have the markers: not at all, as tokens that decoding shows, as special tokens.
marked = pytest.mark.parametrize("special", [None, False, True], ids=["text", "added", "special"])


@pytest.fixture
def tokenizer(language_models: Path) -> Tokenizer:
    return Tokenizer.from_file(str(language_models / "large" / "tokenizer.json"))


def marked_tokenizer(tokenizer: Tokenizer, style: ToolCallFormat, special: bool | None) -> Tokenizer:
    if special is not None:
        tokenizer.add_tokens([AddedToken(marker, special=special, normalized=False) for marker in style.markers])
    return tokenizer


def allowed(grammar: str | None, tokenizer: Tokenizer, text: str, tokens: Sequence[int] | None = None) -> bool:
    """Whether the grammar allows `text`, encoded or as `tokens`, and its end."""
    assert grammar is not None
    constraint = GrammarConstraint(Grammar.from_lark(grammar, tokenizer), [END])
    tokens = tokens or tokenizer.encode(text, add_special_tokens=False).ids
    return constraint.count_allowed([], [*tokens, END]) == len(tokens) + 1


@pytest.mark.covering(1)
@styles
@marked
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required", "none", NAMED], ids=["auto", "required", "none", "named"])
def test_grammar_allows_only_calls_of_the_tool_choice(
    choice: Any, parallel: bool, special: bool | None, style: ToolCallFormat, tokenizer: Tokenizer
) -> None:
    tokenizer = marked_tokenizer(tokenizer, style, special)
    calling = tool_calling(f"{{{{ tools }}}} {style.signs[0]}", tokenizer, [WEATHER, NOW], choice, parallel)
    any_tool, free = choice in ("auto", "required"), choice in ("auto", "none")
    now: tuple[str, dict[str, Any]] = ("now", {})
    twice = any_tool and parallel and style.between is not None
    expected = {
        "Some {text": free,
        "a < b <tool [TOOL <|py": free,
        written_calls(style, CALL): any_tool,
        written_calls(style, now): choice != "none",
        written_calls(style, CALL, now): twice,
        "Sure.\n" + written_calls(style, CALL): choice == "auto",
        written_calls(style, CALL) + " text": False,
        written_calls(style, ("weather", {})): False,
        written_calls(style, ("weather", {"city": 1})): any_tool and style.name == "qwen_coder",  # a text "1"
        written_calls(style, ("weather", {"city": "Ulm", "days": "x"})): False,
        written_calls(style, ("weather", {"city": "Ulm", "x": 1})): False,
        written_calls(style, ("other", {})): False,
        style.opening: False,
    }
    if style.bare:
        expected[written_calls(style, CALL, opening=False)] = any_tool or choice == "none"
        expected[f'{style.first}"answer": 1}}'] = choice == "none"
    found = {text: allowed(calling.grammar, tokenizer, text) for text in expected}
    assert found == expected


@pytest.mark.covering(1)
@styles
@marked
def test_marker_in_other_tokens_starts_no_unconstrained_call(
    special: bool | None, style: ToolCallFormat, tokenizer: Tokenizer
) -> None:
    spelled = [token for each in style.opening for token in tokenizer.encode(each).ids]
    tokenizer = marked_tokenizer(tokenizer, style, special)
    for choice in "auto", "none":
        calling = tool_calling(f"{{{{ tools }}}} {style.signs[0]}", tokenizer, [NOW], choice)
        assert allowed(calling.grammar, tokenizer, "", spelled[:-1])
        assert not allowed(calling.grammar, tokenizer, "", [*spelled, *tokenizer.encode("x").ids])


def test_text_allows_visible_added_tokens_and_no_special_ones(tokenizer: Tokenizer) -> None:
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    tokenizer.add_tokens([AddedToken("<|secret|>", special=True)])
    for sign in "<tool_call>", "<|python_tag|>":
        calling = tool_calling(f"{{{{ tools }}}} {sign}", tokenizer, [WEATHER, NOW])
        call = written_calls(calling.style, CALL)
        assert allowed(calling.grammar, tokenizer, "<think>\nWell...\n</think>\n\nHello")
        assert allowed(calling.grammar, tokenizer, f"<think>\nWell...\n</think>\n\n{call}")
        assert not allowed(calling.grammar, tokenizer, "Well <|secret|>")


def test_only_special_markers_are_kept(tokenizer: Tokenizer) -> None:
    source = "{{ tools }} <tool_call>"
    assert tool_calling(source, tokenizer, [NOW]).keep_special == frozenset()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=True)])
    assert tool_calling(source, tokenizer, [NOW]).keep_special == {tokenizer.token_to_id("</tool_call>")}
    assert tool_calling(source, tokenizer, [NOW], "none").keep_special == frozenset()


def test_any_text_is_allowed_without_tools(tokenizer: Tokenizer) -> None:
    calling = tool_calling("", tokenizer, [])
    assert calling.grammar is None
    assert calling.parser() is None
    assert tool_calling("", tokenizer, [NOW], "none").parser() is None


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("""{{- '\\n<tool_call>\\n{"name": "' }}""", "hermes"),
        ("""{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}""", "llama"),
        ("""{%- if builtin_tools %}{{- "<|python_tag|>" + tool_call.name }}""", "llama"),
        ("""{{- "[TOOL_CALLS] [" }}""", "mistral"),
        ("""{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}""", "qwen_coder"),
        ("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>", "qwen_coder"),
        ("""{{- "in the format of [func_name1(params_name1=params_value1, ...), func_name2(params)]" }}""", "pythonic"),
        ("""<|python_tag|> "parameters": [func_name1(param1=value1, param2=value2), func_name2(...)]""", "pythonic"),
        ("""{{ tools }} "parameters": <tool_call>""", "hermes"),
        ("{{ tools | tojson }}", "hermes"),
    ],
)
def test_format_is_detected_from_the_template(source: str, name: str) -> None:
    assert format_of(source).name == name


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([{"type": "retrieval"}], "auto", "tool 1: expected"),
        ([{"type": "function", "function": "now"}], "auto", "tool 1: expected"),
        ([NOW, {"type": "function", "function": {}}], "auto", "tool 2: name None, expected 1 to 64"),
        ([{"type": "function", "function": {"name": 'a"b'}}], "auto", "tool 1: name 'a\"b', expected"),
        ([NOW, NOW], "auto", "tool 2: 'now' is the name of two tools"),
        ([{"type": "function", "function": {"name": "x", "parameters": {"type": "string"}}}], "auto", "type object"),
        ([{"type": "function", "function": {"name": "x", "parameters": [1]}}], "auto", "type object"),
        ([NOW], "any", "tool choice 'any': expected none, auto, required"),
        ([], "required", "tool choice required: there are no tools"),
        ([NOW], {"type": "function", "function": {"name": "x"}}, "no tool is named 'x', the tools are now"),
        ([NOW], {"type": "allowed_tools"}, "tool choice: expected"),
        ([NOW], {"type": "function", "function": None}, "tool choice: expected"),
    ],
)
def test_invalid_tools_and_choices_are_rejected(
    tools: list[dict[str, Any]], choice: Any, message: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(UsageError, match=message):
        tool_calling("", tokenizer, tools, choice)


def test_unsupported_schema_error_names_tool_and_path(tokenizer: Tokenizer) -> None:
    odd = {"type": "object", "properties": {"x": {"type": "string", "pattern": "a(?=b)"}}}
    with pytest.raises(UsageError, match=r"^tool 'x': parameters at #/properties/x: pattern 'a\(\?=b\)': look-around"):
        tool_calling("", tokenizer, [{"type": "function", "function": {"name": "x", "parameters": odd}}])


def test_parameter_that_the_format_cannot_write_is_named(tokenizer: Tokenizer) -> None:
    for sign, name in ("<tool_call>\\n<function=", "a<b"), ("[func_name1(", "a b"):
        parameters = {"type": "object", "properties": {name: {}}}
        with pytest.raises(UsageError, match=f"^tool 'x': parameters at #/properties: .* cannot write .* '{name}'"):
            tool_calling(sign, tokenizer, [{"type": "function", "function": {"name": "x", "parameters": parameters}}])


UNIQUE = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}, "required": ["x"]}
CENTS = {"type": "object", "properties": {"x": {"type": "number", "multipleOf": 0.01}}, "required": ["x"]}


@styles
@pytest.mark.parametrize(
    ("parameters", "good", "bad", "keyword"),
    [
        (UNIQUE, {"x": [1, True]}, {"x": [{"a": 1}, {"a": 1.0}]}, "uniqueItems at #/properties/x"),
        (CENTS, {"x": 0.29}, {"x": 0.295}, "multipleOf at #/properties/x"),
    ],
)
def test_unenforced_keyword_is_checked_in_the_finished_call(
    parameters: dict[str, Any],
    good: dict[str, Any],
    bad: dict[str, Any],
    keyword: str,
    style: ToolCallFormat,
    tokenizer: Tokenizer,
) -> None:
    tool = {"type": "function", "function": {"name": "x", "parameters": parameters}}
    calling = tool_calling(style.signs[0], tokenizer, [tool, NOW], "required")
    for arguments in (good, bad):
        text = written_calls(style, ("x", arguments))
        assert allowed(calling.grammar, tokenizer, text)
        (answer,) = answers_for(1, calling)
        if arguments == good:
            answer.take(Part(0, text, (), None))
        else:
            with pytest.raises(EngineError, match=f"tool 'x' with arguments that break {keyword}"):
                answer.take(Part(0, text, (), None))


HARMLESS = [
    {"type": "array", "uniqueItems": False, "minItems": 0},
    {"type": "string", "maxLength": 3.0, "format": "nonsense", "contentMediaType": "text/html"},
    {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "readOnly": True, "x-order": 1},
    {"type": "integer", "title": "T", "examples": [1], "default": None, "deprecated": True, "$comment": "c"},
]


@pytest.mark.parametrize("schema", HARMLESS)
def test_harmless_tool_keywords_are_accepted(schema: dict[str, Any], tokenizer: Tokenizer) -> None:
    parameters = {"type": "object", "properties": {"x": schema}}
    tool = {"type": "function", "function": {"name": "x", "parameters": parameters}}
    calling = tool_calling("", tokenizer, [tool])
    assert allowed(calling.grammar, tokenizer, written_calls(calling.style, ("x", {}))) and not calling.checks


def test_format_of_the_page_reads_its_calls() -> None:
    page = (Path(__file__).parents[4] / "docs" / "tool_calls.md").read_text(encoding="utf-8")
    code = page.partition("## Adding a format\n")[2].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {"ToolCallFormat": ToolCallFormat, "JsonCalls": JsonCalls}
    exec(code, names)  # noqa: S102  it is our own page
    text = '<|tool_call|>[{"name": "now", "arguments": {}}, {"name": "weather", "arguments": {"city": "Ulm"}}]'
    assert written_calls(names["GRANITE"], ("now", {}), ("weather", {"city": "Ulm"})) == text
    assert parsed(names["GRANITE"], [text]) == ("", [("now", "{}", True), ("weather", '{"city": "Ulm"}', True)])
