"""The tools of a request, and which of them the model may or must call."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from intaglio.errors import UsageError

NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")  # OpenAI's API, and dots
MOST_TOOLS = 128  # of a request, as in OpenAI's API
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL_KEYS = {"type", "function"}
# "strict" changes nothing, as calls always keep to the schema; "return" is of the tools that transformers writes.
FUNCTION_KEYS = {"name", "description", "parameters", "strict", "return"}
Mode = Literal["none", "auto", "required"]
Choice = Mode | Mapping[str, Any]  # OpenAI's `tool_choice`; the mapping names a tool


class ToolDefinition(NamedTuple):
    """A tool that the model may call."""

    name: str
    parameters: Mapping[str, Any]  # JSON schema of its arguments, an object


class ToolChoice(NamedTuple):
    """Which tools may be called, and whether one of them must be."""

    mode: Mode
    tools: Sequence[ToolDefinition]
    most_calls: int | None  # None: any number


def read_tools(tools: Sequence[Mapping[str, Any]]) -> list[ToolDefinition]:
    """Read OpenAI's list of {"type": "function", "function": {"name", "description", "parameters"}}.

    A tool without parameters takes none. Raises `UsageError` for another structure or other keys, for names that occur
    twice, and for parameters that are not the schema of an object.
    """
    if len(tools) > MOST_TOOLS:
        raise UsageError(f"{len(tools)} tools: expected at most {MOST_TOOLS}. Leave some out.")
    read: dict[str, ToolDefinition] = {}
    for number, tool in enumerate(tools, 1):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, Mapping):
            raise UsageError(f'tool {number}: expected {{"type": "function", "function": {{"name": ...}}}}.')
        _check_keys(f"tool {number}", tool, TOOL_KEYS)
        _check_keys(f"tool {number}: function", function, FUNCTION_KEYS)
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise UsageError(f"tool {number}: name {name!r:.80}, expected 1 to 64 of a-z, A-Z, 0-9, _, . and -.")
        if name in read:
            raise UsageError(f"tool {number}: {name!r} is the name of two tools. Rename one.")
        if parameters is None:
            parameters = NO_PARAMETERS
        if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
            raise UsageError(f"tool {name!r}: expected parameters that are a JSON schema of type object.")
        read[name] = ToolDefinition(name, {"type": "object", **parameters})
    return list(read.values())


def read_choice(choice: Choice, tools: Sequence[ToolDefinition], parallel: bool) -> ToolChoice:
    """Read OpenAI's `tool_choice`: "none", "auto", "required", or {"type": "function", "function": {"name": ...}}.

    `parallel`: whether several calls are allowed; of a named tool there is one. Raises `UsageError` for another value,
    and for a tool that is not among `tools`.
    """
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if choice.get("type") != "function" or not isinstance(name, str):
            raise UsageError('tool choice: expected {"type": "function", "function": {"name": ...}}.')
        _check_keys("tool choice", choice, TOOL_KEYS)
        _check_keys("tool choice: function", function or {}, {"name"})
        named = [tool for tool in tools if tool.name == name]
        if not named:
            known = ", ".join(tool.name for tool in tools) or "none"
            raise UsageError(f"tool choice: no tool is named {name!r:.80}, the tools are {known}.")
        return ToolChoice("required", named, 1)
    if choice not in ("none", "auto", "required"):
        raise UsageError(f"tool choice {choice!r:.80}: expected none, auto, required, or the name of a tool.")
    if choice == "required" and not tools:
        raise UsageError("tool choice required: there are no tools. Add one, or choose auto.")
    return ToolChoice(choice if tools else "none", tools, None if parallel else 1)


def _check_keys(where: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    for key in given:
        if key not in known:
            expected = ", ".join(sorted(known))
            raise UsageError(f"{where}: {key!r:.80} is not supported, expected {expected}. Leave it out.")
