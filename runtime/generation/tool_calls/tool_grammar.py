"""The grammar of a text with tool calls, in llguidance's variant of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from intaglio.errors import UsageError
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat
from intaglio.runtime.generation.tool_calls.tools import ToolChoice, ToolDefinition
from intaglio.runtime.sampling.grammar_tokenizer import grammar_tokenizer
from intaglio.runtime.sampling.json_schema.document import UnsupportedError
from intaglio.runtime.sampling.json_schema.relax import Relaxed, relaxed
from intaglio.runtime.sampling.json_schema.writer import schema_rules

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# The spaces that `tojson` writes into prompts. Models of little confidence would write others without end.
COMMA, COLON = ", ", ": "


def tool_grammar(style: ToolCallFormat, choice: ToolChoice, tokenizer: Tokenizer) -> str:
    """Return the grammar of a text in which tools are called as `choice` says.

    "none": text without a marker. "required": calls, and no text. "auto": text, calls, or text and then calls. The
    arguments of a call match the schema of its tool. Text has no special tokens, but those that decoding shows, such
    as <think>.
    """
    special = _special(style, tokenizer)
    opening = _literals(style.opening, special)
    calls = _calls(style, choice, special) if choice.mode != "none" else []
    if choice.mode == "required":
        start = f"({opening})? calls" if style.bare else f"{opening} calls"
        return "\n".join([f"start: {start}", *calls, ""])
    bare = style.bare and choice.mode == "auto"
    first = re.escape(style.first)
    other = _shown(style, tokenizer)
    after = f" ({other} TEXT?)*" if other else ""
    unmarked = f"~/(?s:.*){re.escape(style.opening)}(?s:.*)/"
    starts = ["text"]
    rules = [
        f"text: {'FIRST' if bare else 'TEXT'}?{after}",
        f"TEXT: /(?s:.+)/ & {unmarked}",
        *([rf"FIRST: /(?s:\s+|\s*[^\s{first}].*)/ & {unmarked}"] if bare else []),
    ]
    if calls and style.opening in special:
        starts.append(f"text {opening} calls")
    elif calls:
        starts.append(f"{f'(TEXT? {other})* ' if other else ''}marked calls")
        before = rf"\s*([^\s{first}].*)?" if bare else ".*"
        rules.append(f"marked[lazy]: /(?s:{before}){re.escape(style.opening)}/")
    if bare:
        starts.append("calls")
    return "\n".join([f"start: {' | '.join(starts)}", *rules, *calls, ""])


def _special(style: ToolCallFormat, tokenizer: Tokenizer) -> dict[str, int]:
    """Return the markers that are tokens which llguidance does not read as text, with their ids.

    Those are more than the special tokens of the tokenizer: all added tokens in angle brackets.
    """
    ids = {marker: tokenizer.token_to_id(marker) for marker in style.markers}
    library = grammar_tokenizer(tokenizer).library
    return {marker: token for marker, token in ids.items() if token is not None and library.is_special_token(token)}


def _shown(style: ToolCallFormat, tokenizer: Tokenizer) -> str:
    """Return the tokens that llguidance does not read as text, although decoding shows them; empty for none."""
    library = grammar_tokenizer(tokenizer).library
    shown = [
        token
        for token, added in sorted(tokenizer.get_added_tokens_decoder().items())
        if not added.special and added.content not in style.markers and library.is_special_token(token)
    ]
    return f"<[{','.join(map(str, shown))}]>" if shown else ""


def _calls(style: ToolCallFormat, choice: ToolChoice, special: Mapping[str, int]) -> list[str]:
    """Return the rules of the calls after the first marker."""
    names = [f"call_{number}" for number in range(len(choice.tools))]
    more = f"({_literals(style.between, special)} call)*" if style.between and choice.most_calls != 1 else ""
    parts = [_literals(style.before, special), "call", more, _literals(style.after, special)]
    rules = [f"calls: {' '.join(filter(None, parts))}", f"call: {' | '.join(names)}"]
    for number, (name, tool) in enumerate(zip(names, choice.tools, strict=True)):
        before, after = style.syntax.frame(tool.name)
        arguments, others = _arguments(style, tool, number)
        rules += [f"{name}: {json.dumps(before)} {arguments} {json.dumps(after)}", others]
    return rules


def relaxed_tool(style: ToolCallFormat, tool: ToolDefinition, number: int) -> Relaxed:
    """Return the parameters of the tool with this number, without what its grammar leaves to a check."""
    if not _is_json(tool):
        return Relaxed(tool.parameters, ())  # the grammar will say so
    return relaxed(tool.parameters, lambda schema: _schema_rules(style, schema, number))


def _schema_rules(style: ToolCallFormat, schema: str, number: int) -> tuple[str, str]:
    return schema_rules(schema, COMMA, COLON, prefix=f"call_{number}_", notation=style.syntax.notation)


def _is_json(tool: ToolDefinition) -> bool:
    try:
        json.dumps(tool.parameters, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # NaN, half of a surrogate pair
        return False
    return True


def _arguments(style: ToolCallFormat, tool: ToolDefinition, number: int) -> tuple[str, str]:
    """Return the rule of a tool's arguments, and all rules that it needs."""
    if not _is_json(tool):
        raise UsageError(f"tool {tool.name!r}: parameters are not valid JSON, such as NaN. Fix them.")
    try:
        return _schema_rules(style, json.dumps(tool.parameters, ensure_ascii=False), number)
    except UnsupportedError as error:
        raise UsageError(f"tool {tool.name!r}: parameters at {error}") from error


def _literals(text: str, special: Mapping[str, int]) -> str:
    """Return a sequence of string literals and special tokens that is `text`; empty for an empty one."""
    parts = re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]
    return " ".join(f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part)
