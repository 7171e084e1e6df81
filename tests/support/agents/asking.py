"""One request to the model of an agent, until it finishes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from intaglio.runtime.agents.models.model import End, Model, ModelRequest
from intaglio.runtime.generation.requests.message import Message, ToolCall

QUESTION = [Message("system", "Answer the question about Python."), Message("user", "What does import do?")]
Answer = tuple[str, list[ToolCall], End]


async def ask(model: Model, messages: Sequence[Message] = QUESTION, most: int = 12, **options: Any) -> Answer:
    """The text, the calls, and the end of an answer."""
    async with model.stream(ModelRequest(messages, most, **options)) as pieces:
        given = [piece async for piece in pieces]
    (end,) = (piece for piece in given if isinstance(piece, End))
    assert given[-1] is end
    text = "".join(piece for piece in given if isinstance(piece, str))
    return text, [piece for piece in given if isinstance(piece, ToolCall)], end
