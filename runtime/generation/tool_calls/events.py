"""What the text of a model turns out to be: content, and calls of tools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Text that is not part of a call, at least one character."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call begins: its arguments follow."""

    index: int  # 0, 1, ... in the text
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """The next characters of the arguments of a call: JSON text of an object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is complete. A call without this event was cut off by the end of the text."""

    index: int


ToolEvent = ContentPiece | CallStarted | ArgumentsPiece | CallEnded
