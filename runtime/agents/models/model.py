"""The language model of an agent, as an agent uses it: messages in, pieces of text and tool calls out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from intaglio.errors import IntaglioError
from intaglio.runtime.agents.tools.tool import Tool
from intaglio.runtime.generation.requests.message import Message, ToolCall
from intaglio.runtime.generation.tool_calls.tools import Mode


class ModelError(IntaglioError):
    """A model that does not answer, or whose answer ends too early: a server that is not there, or goes away."""


@dataclass(frozen=True)
class ModelRequest:
    """One request to a model."""

    messages: Sequence[Message]
    max_tokens: int
    grammar: str | None = None  # Lark grammar of the text, in llguidance's variant; see `Model.constrained`
    stop: Sequence[str] = ()  # strings that end the text, and are not part of it
    tools: Sequence[Tool] = ()  # tools that it may call as the API has it, in `ToolCall` pieces
    tool_choice: Mode = "auto"  # "required": it must call some; "none": it must answer, with the same prompt
    temperature: float = 0.0
    seed: int | None = None


class Usage(NamedTuple):
    """The tokens of one or more requests."""

    prompt: int = 0
    cached: int = 0  # tokens of the prompts that were in the cache
    completion: int = 0
    calls: int = 0  # requests

    def __add__(self, other: Usage) -> Usage:  # type: ignore[override]  # sums, not a concatenation
        return Usage(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class End(NamedTuple):
    """The last piece of an answer."""

    usage: Usage
    finish_reason: str  # "stop", "length" (max_tokens were written), or "tool_calls"


MOST_CHARACTERS = 32  # of a token, on average; text has 4
LEAST_CHARACTERS = 2  # of a piece that counts as a token: some servers send single characters


def exceeds(pieces: int, characters: int, tokens: int) -> bool:
    """Whether an answer of so many pieces and characters has more than `tokens`, which not every server obeys."""
    return characters > MOST_CHARACTERS * tokens or (pieces > tokens and characters > LEAST_CHARACTERS * tokens)


ModelPiece = str | ToolCall | End


class Model(Protocol):
    """A language model. Several requests may run at a time."""

    name: str
    constrained: bool  # whether a grammar is enforced; otherwise it is ignored

    def stream(self, request: ModelRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelPiece]]:
        """Start a request and iterate over its answer: text and tool calls as they come, then one `End`.

        Leaving the context cancels the rest. Raises `ModelError` if the model does not answer, or stops before the
        end; `UsageError` for a request that it rejects, such as a prompt longer than its context.
        """
