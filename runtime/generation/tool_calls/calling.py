"""Prepare a request with tools: the tools for the prompt, the grammar of the text, and its parser.

calling = tool_calling(template.tool_source, prompts.tokenizer, tools, "auto")
request = GenerationRequest(
    ChatPrompt(messages, calling.prompt_tools),
    constraint=GrammarConstraint(Grammar.from_lark(calling.grammar, prompts.tokenizer), end_tokens),
    keep_special=calling.keep_special,
)
parser = calling.parser()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from intaglio.runtime.generation.tool_calls.formats import format_of
from intaglio.runtime.generation.tool_calls.parser import ToolCallParser
from intaglio.runtime.generation.tool_calls.tool_format import ToolCallFormat
from intaglio.runtime.generation.tool_calls.tool_grammar import relaxed_tool, tool_grammar
from intaglio.runtime.generation.tool_calls.tools import Choice, ToolChoice, read_choice, read_tools
from intaglio.runtime.sampling.json_schema.relax import ArgumentCheck

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class ToolCalling:
    """What a request with tools needs."""

    style: ToolCallFormat
    choice: ToolChoice
    prompt_tools: Sequence[Mapping[str, Any]]  # for `ChatPrompt`
    grammar: str | None  # Lark text of the output; None without tools: any text
    keep_special: frozenset[int]  # special tokens that the parser reads, for `GenerationRequest`
    checks: Mapping[str, ArgumentCheck] = field(default_factory=dict)  # of what the grammar leaves out, by tool

    def parser(self) -> ToolCallParser | None:
        """Return a parser of the text; None where it has no calls, and all of it is content."""
        if self.choice.mode == "none":
            return None
        return ToolCallParser(self.style, {tool.name: tool.parameters for tool in self.choice.tools})


def tool_calling(
    template_source: str,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]],
    choice: Choice = "auto",
    parallel: bool = True,
) -> ToolCalling:
    """Prepare a request with `tools`, for a model with this chat template (`ChatTemplate.tool_source`).

    `tools`, `choice`: as OpenAI's API has them; `parallel`: whether several calls are allowed. Raises `UsageError` for
    invalid tools, and for a choice that is not among them; `MissingExtraError` without llguidance.
    """
    style, read = format_of(template_source), read_tools(tools)
    chosen = read_choice(choice, read, parallel)
    written, checks = _relaxed(style, chosen)
    added = tokenizer.get_added_tokens_decoder().items()
    markers = {token for token, each in added if each.special and each.content in style.markers}
    return ToolCalling(
        style=style,
        choice=chosen,
        prompt_tools=tuple(tools),
        grammar=tool_grammar(style, written, tokenizer) if tools else None,
        keep_special=frozenset(markers if chosen.mode != "none" else ()),
        checks=checks,
    )


def _relaxed(style: ToolCallFormat, choice: ToolChoice) -> tuple[ToolChoice, dict[str, ArgumentCheck]]:
    """Return the choice with the parameters that the grammar enforces, and the checks of the others by tool."""
    if choice.mode == "none":
        return choice, {}
    tools, checks = [], {}
    for number, tool in enumerate(choice.tools):
        found = relaxed_tool(style, tool, number)
        tools.append(tool._replace(parameters=found.schema))
        if found.left_out:
            checks[tool.name] = ArgumentCheck(tool.name, tool.parameters, found.left_out)
    return choice._replace(tools=tools), checks
