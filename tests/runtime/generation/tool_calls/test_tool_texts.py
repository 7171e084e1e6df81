"""Tool calls that a trained model writes: every call parses, and its arguments match the schema of its tool."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from intaglio.exporters import export
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.chat import ChatPrompt
from intaglio.runtime.generation.requests.message import Message
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.scheduling.events import Failed, Finished, Piece
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.tool_calls.calling import ToolCalling, tool_calling
from intaglio.runtime.generation.tool_calls.events import ArgumentsPiece, CallEnded, CallStarted, ContentPiece
from intaglio.runtime.generation.tool_calls.parser import ToolCallParser
from intaglio.runtime.sampling.constraint import Booleans, LogitConstraint
from intaglio.runtime.sampling.grammar import Grammar, GrammarConstraint
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.runtime.strategies import NGram, Plain, Speculative, Strategy

END = 0
TEMPLATES = {
    "hermes": """
{%- if tools %}{% for tool in tools %}{{ tool.function.name }}{{ "\\n" }}{% endfor %}{% endif %}
{%- for message in messages %}
{{- message.role + ": " + (message.content or "") }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}{{ call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{{ "\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "assistant: " }}{% endif %}""",
    "llama": """
{%- for tool in tools or [] %}{{ tool.function.name }}{{ "\\n" }}{% endfor %}
{%- for message in messages %}{{ message.role + ": " + message.content + "\\n" }}{% endfor %}
{%- if false %}{{ '"parameters": ' }}{% endif %}""",
    "mistral": """
{%- for tool in tools or [] %}{{ tool.function.name }}{{ "\\n" }}{% endfor %}
{%- for message in messages %}{{ message.role + ": " + message.content + "\\n" }}{% endfor %}
{%- if false %}{{ '[TOOL_CALLS] ' }}{% endif %}""",
}
TEMPLATES["qwen_coder"] = """
{%- for tool in tools or [] %}{{ tool.function.name }}{{ "\\n" }}{% endfor %}
{%- for message in messages %}
{{- message.role + ": " + (message.content or "") }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments|items %}
{{- '<parameter=' + name + '>\\n' }}{{ value if value is string else value | tojson }}{{ '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}{{ "\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "assistant: " }}{% endif %}"""
TEMPLATES["pythonic"] = TEMPLATES["llama"].replace('"parameters": ', "[func_name1(params_name1=params_value1)]")
MARKERS = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "llama": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]",),
    "qwen_coder": ("<tool_call>", "</tool_call>"),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 8},
                    "days": {"type": "integer", "minimum": 1, "maximum": 9},
                    "unit": {"enum": ["C", "F", None]},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "weather_map",
            "parameters": {
                "type": "object",
                "properties": {"where": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}},
                "required": ["where"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
NAMED = {"type": "function", "function": {"name": "weather_map"}}
SCHEMAS = {tool["function"]["name"]: tool["function"].get("parameters", {"maxProperties": 0}) for tool in TOOLS}


def checkpoint(source: Path, folder: Path, style: str, special: bool) -> Path:
    """A copy of `source` with a chat template; `special`: its last tokens are the markers, as special tokens."""
    shutil.copytree(source, folder)
    configuration = json.loads((folder / "tokenizer_config.json").read_text())
    configuration["chat_template"] = TEMPLATES[style]
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    if special:
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
        for marker in MARKERS[style]:
            token = vocabulary.pop("".join(merges.pop()))
            vocabulary[marker] = token
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            tokenizer["added_tokens"].append({"id": token, "content": marker, "special": True, **flags})
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


Opened = Callable[[str, bool], TextGenerator]


@pytest.fixture(scope="module")
def generators(language_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The trained models with a template of a format, and with or without special tokens for its markers."""
    opened: dict[tuple[str, bool], TextGenerator] = {}

    def make(style: str, special: bool) -> TextGenerator:
        if (style, special) not in opened:
            folder = tmp_path_factory.mktemp("tools")
            for size in "large", "small":
                source = checkpoint(language_models / size, folder / size, style, special)
                export(str(source), folder / f"{size}-bundle", check=False)
            opened[style, special] = TextGenerator(
                folder / "large-bundle", draft=folder / "small-bundle", strategy="speculative", batch=4, threads=1
            )
        return opened[style, special]

    yield make
    for generator in opened.values():
        generator.__exit__(None, None, None)


class Begun(LogitConstraint):
    """A text that begins with certain tokens, as far as a grammar allows them."""

    def __init__(self, tokens: Sequence[int], grammar: LogitConstraint):
        self._tokens, self._grammar = tokens, grammar

    def allowed(self, written: Sequence[int]) -> Booleans | None:
        """See `LogitConstraint`."""
        mask = self._grammar.allowed(written)
        if mask is None or len(written) >= len(self._tokens):
            return mask
        only = np.zeros_like(mask)
        only[self._tokens[len(written)]] = mask[self._tokens[len(written)]]
        return only

    def finished(self, written: Sequence[int]) -> bool:
        """See `LogitConstraint`."""
        return self._grammar.finished(written)


def calls_of(parser: ToolCallParser | None, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The content, and the names and arguments of the calls that are complete."""
    if parser is None:
        return "".join(pieces), []
    content, calls, ended = "", list[tuple[str, str]](), 0
    for event in [event for piece in pieces for event in parser.feed(piece)] + parser.finish():
        match event:
            case ContentPiece(text):
                content += text
            case CallStarted(_, _, name):
                calls.append((name, ""))
            case ArgumentsPiece(index, text):
                calls[index] = (calls[index][0], calls[index][1] + text)
            case CallEnded():
                ended += 1
    assert ended >= len(calls) - 1
    return content, calls[:ended]


def write(
    generator: TextGenerator,
    calling: ToolCalling,
    questions: Sequence[str],
    strategy: Strategy,
    sampling: Sampling,
    begin: str = "",
) -> list[tuple[Generated, list[str]]]:
    """Ask the questions in one batch; return the results with their pieces. `begin`: how the first text begins."""
    scheduler = generator.scheduler
    grammar = Grammar.from_lark(calling.grammar or "", generator.tokenizer)
    begun = generator.tokenizer.encode(begin).ids
    states = [
        scheduler.submit(
            GenerationRequest(
                ChatPrompt([Message("user", question)], calling.prompt_tools),
                max_new_tokens=150,
                strategy=strategy,
                constraint=Begun([] if number else begun, GrammarConstraint(grammar, [END])),
                keep_special=calling.keep_special,
                sampling=sampling,
                seed=number,
            )
        )
        for number, question in enumerate(questions)
    ]
    pieces: dict[int, list[str]] = {id(state): [] for state in states}
    results: dict[int, Generated] = {}
    while not scheduler.idle:
        for event in scheduler.step():
            assert not isinstance(event, Failed), event.error
            if isinstance(event, Piece):
                pieces[id(event.state)].append(event.text)
            if isinstance(event, Finished):
                results[id(event.state)] = event.result
    return [(results[id(state)], pieces[id(state)]) for state in states]


@pytest.fixture(scope="module")
def plain_tokens() -> dict[tuple[str, str, bool], list[list[int]]]:
    """The greedy tokens of `Plain`, by choice, style and whether markers are special tokens."""
    return {}


QUESTIONS = ["The weather in Ulm?", "A module is", "def f(x):", "What time is it in the list of names?"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
@pytest.mark.parametrize("style", TEMPLATES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.5)], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "strategy", [Plain(), Speculative(), NGram(min_draft_prob=1e-3)], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize("choice", ["required", NAMED, "auto"], ids=["required", "named", "auto"])
def test_every_call_parses_and_matches_its_tool(
    choice: Any,
    strategy: Strategy,
    sampling: Sampling,
    style: str,
    special: bool,
    generators: Opened,
    plain_tokens: dict[tuple[str, str, bool], list[list[int]]],
) -> None:
    generator = generators(style, special)
    calling = tool_calling(generator.template.tool_source, generator.tokenizer, TOOLS, choice, parallel=False)
    assert calling.style.name == style
    begin = ("" if style == "llama" and not special else "Well \n") + MARKERS[style][0] if choice == "auto" else ""
    found = write(generator, calling, QUESTIONS, strategy, sampling, begin)
    for number, (result, pieces) in enumerate(found):
        content, calls = calls_of(calling.parser(), pieces)
        if choice != "auto":
            assert result.stopped == "eos" and len(calls) == 1 and not content
        elif not number:
            assert (content, len(calls)) == (begin.partition(" ")[0] if " " in begin else "", 1)
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
            assert choice != NAMED or name == "weather_map"
        assert all(marker not in content for marker in MARKERS[style])
    if sampling.greedy:
        case, tokens = (str(choice), style, special), [result.tokens for result, _ in found]
        if isinstance(strategy, Plain):
            plain_tokens[case] = tokens
        elif case not in plain_tokens:  # this test alone was asked for
            plain = write(generator, calling, QUESTIONS, Plain(), sampling, begin)
            plain_tokens[case] = [result.tokens for result, _ in plain]
        assert tokens == plain_tokens[case]


@pytest.mark.parametrize("style", ["hermes", "qwen_coder"])
@pytest.mark.parametrize("special", [False, True], ids=["text", "special"])
def test_parsed_calls_are_in_the_prompt_of_the_next_turn(special: bool, style: str, generators: Opened) -> None:
    """The model's text of a call equals the template's rendering of the parsed call."""
    generator = generators(style, special)
    calling = tool_calling(generator.template.tool_source, generator.tokenizer, TOOLS, "required", parallel=False)
    ((result, pieces), *_) = write(generator, calling, QUESTIONS[:1], Plain(), Sampling(1.0))
    ((name, arguments),) = calls_of(calling.parser(), pieces)[1]
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    answered = msgspec.convert({"role": "assistant", "content": None, "tool_calls": [call]}, Message)
    assert f"assistant: {result.text}\n" in generator.template.render([answered], TOOLS)
