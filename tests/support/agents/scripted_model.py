"""A model of an agent with scripted responses: chunks of text, calls, pauses, failures, silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from intaglio.runtime.agents.models.model import End, Model, ModelPiece, ModelRequest, Usage
from intaglio.runtime.generation.requests.message import FunctionCall, ToolCall

SILENCE = float("inf")  # seconds until the request is cancelled
Step = str | ToolCall | End | float | Exception  # a chunk, seconds to wait, or an exception that the stream raises
Answer = str | Sequence[Step]  # a text is one chunk


def cut(text: str, size: int = 5, seconds: float = 0.0) -> list[Step]:
    """`text` in chunks of `size` characters, each after `seconds`."""
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    return [step for piece in pieces for step in (seconds, piece)]


def call(name: str, arguments: str, identity: str = "c1") -> ToolCall:
    """A call in the format of the API."""
    return ToolCall(FunctionCall(name, arguments), identity, "function")


@dataclass
class ScriptedModel:
    """Gives one response per request, and the last one to all further requests. A chunk counts as a token.

    A response ends with its own `End`, or by itself unless `ends` is False; after `max_tokens` chunks it is
    truncated, as by servers, unless `obeys` is False.
    """

    answers: list[Answer]
    constrained: bool = False
    ends: bool = True
    obeys: bool = True
    name: str = "scripted"
    requests: list[ModelRequest] = field(default_factory=list)
    open: int = 0  # streams

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPiece]]:
        """See `Model`."""
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.open += 1
        try:
            async with aclosing(self._pieces([answer] if isinstance(answer, str) else answer, request)) as pieces:
                yield pieces
        finally:
            self.open -= 1

    async def _pieces(self, answer: Sequence[Step], request: ModelRequest) -> AsyncGenerator[ModelPiece, None]:
        prompt = sum(len(message.content or "") for message in request.messages)
        count, reason = 0, "stop"
        for step in answer:
            if isinstance(step, float):
                await (asyncio.sleep(step) if step != SILENCE else asyncio.Event().wait())
                continue
            if isinstance(step, Exception):
                raise step
            if self.obeys and count == request.max_tokens and not isinstance(step, End):
                reason = "length"
                break
            yield step
            count += 1
        if self.ends:
            yield End(Usage(prompt, 0, count, 1), reason)

    def asked(self, request: int) -> str:
        """The messages of a request as text; the first request is 1."""
        return "\n".join(f"{each.role}: {each.content}" for each in self.requests[request - 1].messages)


class Changed:
    """A model with other options: `Changed(model, temperature=1.0, seed=3)`."""

    def __init__(self, model: Model, **options: Any):
        self.name, self.constrained = model.name, model.constrained
        self._model, self._options = model, options
        self.ends: list[End] = []

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelPiece]]:
        """See `Model`."""
        return self._noted(self._model.stream(replace(request, **self._options)))

    @asynccontextmanager
    async def _noted(
        self, stream: AbstractAsyncContextManager[AsyncIterator[ModelPiece]]
    ) -> AsyncIterator[AsyncIterator[ModelPiece]]:
        async def pieces(given: AsyncIterator[ModelPiece]) -> AsyncGenerator[ModelPiece, None]:
            async for piece in given:
                if isinstance(piece, End):
                    self.ends.append(piece)
                yield piece

        async with stream as given, aclosing(pieces(given)) as noted:
            yield noted
