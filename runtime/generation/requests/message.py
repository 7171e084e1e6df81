"""The messages of a conversation, with the tool calls in them."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from intaglio.errors import UsageError, one_line


class FunctionCall(msgspec.Struct):
    """The function that a tool call names, and its arguments."""

    name: str
    arguments: str | dict[str, Any]  # JSON text of an object, as OpenAI's API has it, or the object

    def as_text(self) -> str:
        """The arguments as JSON text, as the model wrote them if they are known as text."""
        if isinstance(self.arguments, str):
            return self.arguments or "{}"
        return json.dumps(self.arguments, ensure_ascii=False)


class ToolCall(msgspec.Struct, omit_defaults=True):
    """A tool call of an assistant message."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] | None = None


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str  # "system", "user", "assistant", "tool", or another role that the template knows
    content: str | None = None  # only an assistant message with tool calls has none
    name: str | None = None  # of the author, or of the tool
    tool_calls: list[ToolCall] | None = None  # of an assistant message
    tool_call_id: str | None = None  # of a tool message: the call that it answers

    def as_variable(self) -> dict[str, Any]:
        """Return the message as templates expect it: arguments as objects, no fields that were left out.

        A template that prints arguments, or joins them to text, gets their JSON text (`template_process.Arguments`).

        Raises `UsageError` for a message without content, and for arguments that are not a JSON object.
        """
        if self.content is None and not self.tool_calls:
            raise UsageError(f"a message of role {self.role!r} has no content. Only one with tool calls needs none.")
        calls = None if self.tool_calls is None else [_call(each) for each in self.tool_calls]
        given = {"name": self.name, "tool_calls": calls, "tool_call_id": self.tool_call_id}
        return {
            "role": self.role,
            "content": self.content,
            **{key: value for key, value in given.items() if value is not None},
        }

    def between(self, word: str) -> Message:
        """The message with `word` at both ends of its content."""
        return msgspec.structs.replace(self, content=f"{word} {self.content} {word}")


def _call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call with its arguments as an object."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(
                f"tool call of {call.function.name!r}: the arguments are not a JSON object ({one_line(error)}). "
                "Send them as the model wrote them, or as an object."
            ) from error
    called: dict[str, Any] = msgspec.to_builtins(call)
    return {**called, "function": {"name": call.function.name, "arguments": arguments}}
