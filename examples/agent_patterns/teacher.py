"""A model that writes the expected output: conversations to train on are recorded from the loops themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from agent_models.conversation import Conversation

from intaglio import Message
from intaglio.runtime import End, ModelPiece, ModelRequest, Usage

NUMBERED = "Plan on, from call "


class Teacher:
    """A `Model` that answers with `reply(messages)`, and records each conversation with that answer."""

    name = "teacher"
    constrained = False

    def __init__(self, reply: Callable[[Sequence[Message]], str]):
        self._reply = reply
        self.conversations: list[Conversation] = []

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPiece]]:
        """See `Model`."""
        text = self._reply(request.messages)
        self.conversations.append(Conversation([*request.messages, Message("assistant", text)]))

        async def pieces() -> AsyncIterator[ModelPiece]:
            yield text
            yield End(Usage(calls=1), "stop")

        yield pieces()


def text(message: Message) -> str:
    """Return the text of a message."""
    assert isinstance(message.content, str)
    return message.content


def first_number(message: Message) -> int:
    """Return the number that the first call of a plan should have, by the message that asks for the plan."""
    asked = text(message)
    return int(asked.removeprefix(NUMBERED).rstrip(".")) if asked.startswith(NUMBERED) else 1


def plan(calls: Sequence[str], first: int) -> str:
    """Return the text of a plan: the calls, numbered from `first`, and join()."""
    return "\n".join(f"{number}. {call}" for number, call in enumerate([*calls, "join()"], first))


def listed(numbers: Sequence[int]) -> str:
    """Return references to these calls, as a list."""
    return "[" + ", ".join(f"${number}" for number in numbers) + "]"
