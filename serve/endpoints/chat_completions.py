"""POST /v1/chat/completions: answers to conversations."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from intaglio.runtime.generation.answer import answers_for
from intaglio.runtime.generation.parts import Part
from intaglio.runtime.generation.text.logprobs import TokenLogprobs
from intaglio.runtime.generation.tool_calls.events import (
    ArgumentsPiece,
    CallEnded,
    CallStarted,
    ContentPiece,
    ToolEvent,
)
from intaglio.runtime.sampling.token_bytes import TokenBytes
from intaglio.serve.models.model import DecoderModel
from intaglio.serve.requests.constraints import ResponseFormat
from intaglio.serve.requests.conversation_fields import ConversationFields, Metadata, conversation_requests
from intaglio.serve.requests.generation_fields import Count
from intaglio.serve.requests.messages import ChatMessage, messages_of
from intaglio.serve.responses.errors import invalid
from intaglio.serve.responses.formatter import Chunk, Formatter
from intaglio.serve.responses.usage import Usage, usage_of

MAX_TOP_LOGPROBS = 20


class ChatRequest(ConversationFields, kw_only=True):
    """The body of a request."""

    messages: list[ChatMessage]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None  # auto, none, required, or a tool's name

    @property
    def most_tokens(self) -> int | None:
        """Maximum tokens of an answer, by either of its names. Raises `ApiError` if they differ."""
        if self.max_completion_tokens is None:
            return self.max_tokens
        if self.max_tokens not in (None, self.max_completion_tokens):
            differ = f"max_tokens: {self.max_tokens}, max_completion_tokens: {self.max_completion_tokens}. Send one."
            raise invalid(differ, "max_tokens")
        return self.max_completion_tokens


class TopLogprob(msgspec.Struct):
    """An alternative token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A generated token."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a text's tokens."""

    content: list[TokenLogprob]
    refusal: None = None


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    """A function's name, and the next characters of its arguments."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """A tool call, or its next part in a stream."""

    function: FunctionDelta
    id: str | None = None
    type: str | None = None
    index: int | msgspec.UnsetType = msgspec.UNSET  # in a stream


class AnswerMessage(msgspec.Struct):
    """The full answer."""

    content: str | None
    tool_calls: list[ToolCallDelta] | msgspec.UnsetType = msgspec.UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct):
    """The response."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metadata: Metadata | msgspec.UnsetType = msgspec.UNSET  # as the request has it
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, omit_defaults=True):
    """The next part of an answer."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    reasoning_content: str | None = None  # of an agent: its progress before the answer


class ChunkChoice(msgspec.Struct):
    """The next characters of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatCompletionChunk(msgspec.Struct):
    """An event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class ChatFormatter(Formatter):
    """Formats texts as answers to a conversation."""

    prompt = "messages"

    def __init__(self, fields: ChatRequest, model: DecoderModel, max_choices: int):
        """Raises `ApiError` for fields out of range."""
        if fields.n > max_choices:
            raise invalid(f"n: {fields.n} answers are asked for, the maximum is {max_choices}.", "n")
        if fields.top_logprobs is not None and not fields.logprobs:
            raise invalid("top_logprobs: needs logprobs. Set logprobs to true, or leave it out.", "top_logprobs")
        self._logprobs = fields.logprobs
        logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
        self.requests, calling = conversation_requests(
            fields,
            model,
            messages_of(fields.messages, model),
            fields.response_format,
            fields.tools or (),
            fields.tool_choice,
            fields.most_tokens,
            logprobs,
        )
        self.streams = fields.stream
        self._usage = fields.reports_usage
        self._bytes_of = TokenBytes(model.worker.prompts.tokenizer)
        self._head = (f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), model.name)
        self._metadata = fields.metadata or msgspec.UNSET
        self._answers = answers_for(fields.n, calling)

    def begin(self) -> list[Chunk]:
        """See `Formatter`."""
        return [self._chunk(index, Delta("assistant", "")) for index in range(len(self.requests))]

    def take(self, part: Part) -> list[Chunk]:
        """See `Formatter`."""
        answer = self._answers[part.choice]
        deltas = [_delta(event) for event in answer.take(part) if not isinstance(event, CallEnded)]
        if not self.streams:
            return []
        chunks = [self._chunk(part.choice, delta) for delta in deltas]
        if part.logprobs:
            logprobs = ChatLogprobs(_logprobs(part.logprobs, self._bytes_of))
            first = deltas[0] if deltas else Delta(content="")
            chunks[:1] = [self._chunk(part.choice, first, logprobs)]
        if part.result is not None:
            chunks.append(self._chunk(part.choice, Delta(), reason=answer.finish_reason))
        return chunks

    def end(self) -> list[Chunk]:
        """See `Formatter`."""
        return [Chunk(ChatCompletionChunk(*self._head, [], self._total()))] if self._usage else []

    def response(self) -> ChatCompletion:
        """See `Formatter`."""
        choices = []
        for index, answer in enumerate(self._answers):
            tokens = (answer.result.logprobs if answer.result else None) or []
            logprobs = ChatLogprobs(_logprobs(tokens, self._bytes_of)) if self._logprobs else None
            calls = [
                ToolCallDelta(FunctionDelta(call.name, call.arguments), call.id, "function") for call in answer.calls
            ]
            content = None if calls and not answer.content else answer.content
            message = AnswerMessage(content, calls or msgspec.UNSET)
            choices.append(ChatChoice(index, message, logprobs, answer.finish_reason))
        return ChatCompletion(*self._head, choices, self._total(), self._metadata)

    def _chunk(
        self, index: int, delta: Delta, logprobs: ChatLogprobs | None = None, reason: str | None = None
    ) -> Chunk:
        return Chunk(ChatCompletionChunk(*self._head, [ChunkChoice(index, delta, logprobs, reason)]))

    def _total(self) -> Usage:
        return usage_of([answer.result for answer in self._answers if answer.result], len(self._answers))


def _delta(event: ToolEvent) -> Delta:
    match event:
        case ContentPiece():
            return Delta(content=event.text)
        case CallStarted():
            return Delta(tool_calls=[ToolCallDelta(FunctionDelta(event.name, ""), event.id, "function", event.index)])
        case ArgumentsPiece():
            return Delta(tool_calls=[ToolCallDelta(FunctionDelta(arguments=event.text), index=event.index)])
        case _:
            return Delta()


def _logprobs(tokens: Sequence[TokenLogprobs], bytes_of: TokenBytes) -> list[TokenLogprob]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        found = bytes_of(token)
        return {"token": found.decode(errors="replace"), "logprob": logprob, "bytes": list(found)}

    return [
        TokenLogprob(
            **entry(each.token, each.logprob), top_logprobs=[TopLogprob(**entry(*other)) for other in each.top]
        )
        for each in tokens
    ]
