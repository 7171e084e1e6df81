"""The items of OpenAI's Responses API: those that a client sends, and those that it gets."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from intaglio.runtime.generation.requests.message import FunctionCall, Message, ToolCall
from intaglio.serve.requests.messages import ContentPart, text_of
from intaglio.serve.responses.errors import invalid


class InputItem(msgspec.Struct, forbid_unknown_fields=True):
    """A message, a call of an earlier answer, or a call's output; its fields depend on `type`."""

    type: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None  # of a message
    content: str | list[ContentPart] | None = None  # of a message
    call_id: str | None = None  # of a call, and of its output
    name: str | None = None  # of a call
    arguments: str | None = None  # of a call: JSON text
    output: str | list[ContentPart] | None = None  # of a call's output
    phase: str | None = None  # of a message that is an answer: accepted and not used
    id: str | None = None  # accepted and not used, as is the status: clients send items back unchanged
    status: str | None = None


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True):
    """A tool that the model may call."""

    type: Literal["function"]
    name: str
    parameters: dict[str, Any] | None = None  # JSON schema
    description: str | None = None
    strict: bool | None = None  # accepted: a schema is always kept to


class TextFormat(msgspec.Struct, forbid_unknown_fields=True):
    """The format of the text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of the text."""

    format: TextFormat = msgspec.field(default_factory=TextFormat)


class OutputText(msgspec.Struct):
    """The text of a message."""

    text: str
    type: Literal["output_text"] = "output_text"
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(msgspec.Struct):
    """A message of the model."""

    id: str
    status: str
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"
    type: Literal["message"] = "message"


class OutputCall(msgspec.Struct):
    """A call that the model makes."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str
    type: Literal["function_call"] = "function_call"


# The fields of an item by its type, beside type, id and status.
ITEM_FIELDS = {
    "message": {"role", "content", "phase"},
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
}
OutputItem = OutputMessage | OutputCall


def new_id(kind: str) -> str:
    """A new id that begins with `kind`."""
    return f"{kind}_{uuid.uuid4().hex}"


def conversation_of(instructions: str | None, given: str | Sequence[InputItem]) -> list[Message]:
    """The conversation of a request. Raises `ApiError` for items that lack a field."""
    messages = [Message("system", instructions)] if instructions else []
    if isinstance(given, str):
        return [*messages, Message("user", given)]
    if not given:
        raise invalid("input: the list is empty. Send at least one message.", "input")
    for number, item in enumerate(given):
        where = f"input[{number}]"
        _check_fields(item, where)
        if item.type == "message":
            text = text_of(item.content, f"{where}.content")
            role = _needed(item.role, f"{where}.role")
            messages.append(Message(role, _needed(text, f"{where}.content")))
        elif item.type == "function_call":
            name = _needed(item.name, f"{where}.name")
            function = FunctionCall(name, _needed(item.arguments, f"{where}.arguments"))
            call = ToolCall(function, _needed(item.call_id, f"{where}.call_id"), "function")
            if messages and messages[-1].role == "assistant":  # one answer: its text and its calls
                messages[-1].tool_calls = [*(messages[-1].tool_calls or []), call]
            else:
                messages.append(Message("assistant", None, tool_calls=[call]))
        else:
            text = text_of(item.output, f"{where}.output")
            identifier = _needed(item.call_id, f"{where}.call_id")
            messages.append(Message("tool", _needed(text, f"{where}.output"), tool_call_id=identifier))
    return messages


def chat_tools(tools: Sequence[FunctionTool]) -> list[dict[str, Any]]:
    """The tools as the chat API has them."""
    found = []
    for tool in tools:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        found.append(
            {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
        )
    return found


def chat_choice(choice: str | Mapping[str, Any] | None) -> str | Mapping[str, Any] | None:
    """The choice of a tool as the chat API has it."""
    if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
        others = {key: value for key, value in choice.items() if key != "name"}
        return {**others, "function": {"name": choice["name"]}}
    return choice


def _check_fields(item: InputItem, where: str) -> None:
    """Raise `ApiError` for a field that items of another type have."""
    allowed = {"type", "id", "status", *ITEM_FIELDS[item.type]}
    for name in item.__struct_fields__:
        if name not in allowed and getattr(item, name) is not None:
            raise invalid(f"{where}.{name}: an item of type {item.type} has none. Leave it out.", f"{where}.{name}")


def _needed(value: str | None, where: str) -> str:
    if value is None:
        raise invalid(f"{where}: is missing. Add it.", where)
    return value
