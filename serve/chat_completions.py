"""POST /v1/chat/completions: answers to conversations."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from tokenizers import Tokenizer

from intaglio.runtime.generation.chat import ChatPrompt
from intaglio.runtime.generation.generated import Generated
from intaglio.runtime.generation.logprobs import TokenLogprobs
from intaglio.serve.constraints import ResponseFormat, constraints_for
from intaglio.serve.errors import invalid
from intaglio.serve.formatter import Chunk, Formatter
from intaglio.serve.generation_fields import Count, GenerationFields, generation_requests
from intaglio.serve.messages import ChatMessage, messages_of
from intaglio.serve.model import DecoderModel
from intaglio.serve.parts import Part
from intaglio.serve.usage import Usage, finish_reason, usage_of

MAX_TOP_LOGPROBS = 20


class ChatRequest(GenerationFields, kw_only=True):
    """The body of a request."""

    messages: list[ChatMessage]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the template, such as {"enable_thinking": false}


class TopLogprob(msgspec.Struct):
    """A token that could have been written."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token that was written."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a text's tokens."""

    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(msgspec.Struct):
    """The whole answer."""

    content: str | None
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
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, omit_defaults=True):
    """What an answer gains."""

    role: str | None = None
    content: str | None = None


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

    def __init__(self, fields: ChatRequest, model: DecoderModel, max_choices: int):
        """Raises `ApiError` for fields out of range."""
        if fields.n > max_choices:
            raise invalid(f"n: {fields.n} answers are asked for, the maximum is {max_choices}.", "n")
        if fields.top_logprobs is not None and not fields.logprobs:
            raise invalid("top_logprobs: needs logprobs. Set logprobs to true, or leave it out.", "top_logprobs")
        self._logprobs = fields.logprobs
        logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
        constraints = constraints_for(fields, fields.response_format, model, fields.n)
        most = fields.max_completion_tokens or fields.max_tokens
        prompt = ChatPrompt(messages_of(fields.messages), options=fields.chat_template_kwargs or {})
        self.requests = generation_requests(fields, model, [prompt], most, logprobs, constraints)
        self.streams = fields.stream
        self._usage = fields.reports_usage
        self._tokenizer = model.worker.prompts.tokenizer
        self._head = (f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), model.name)
        self._results: dict[int, Generated] = {}

    def begin(self) -> list[Chunk]:
        """See `Formatter`."""
        return [self._chunk(index, Delta("assistant", "")) for index in range(len(self.requests))]

    def take(self, part: Part) -> list[Chunk]:
        """See `Formatter`."""
        if part.result is not None:
            self._results[part.choice] = part.result
        if not self.streams:
            return []
        chunks = []
        if part.text or part.logprobs:
            logprobs = ChatLogprobs(_logprobs(part.logprobs, self._tokenizer)) if self._logprobs else None
            chunks.append(self._chunk(part.choice, Delta(content=part.text), logprobs))
        if part.result is not None:
            chunks.append(self._chunk(part.choice, Delta(), reason=finish_reason(part.result)))
        return chunks

    def end(self) -> list[Chunk]:
        """See `Formatter`."""
        return [Chunk(ChatCompletionChunk(*self._head, [], self._total()))] if self._usage else []

    def response(self) -> ChatCompletion:
        """See `Formatter`."""
        choices = []
        for index, result in sorted(self._results.items()):
            logprobs = ChatLogprobs(_logprobs(result.logprobs or [], self._tokenizer)) if self._logprobs else None
            choices.append(ChatChoice(index, AnswerMessage(result.text), logprobs, finish_reason(result)))
        return ChatCompletion(*self._head, choices, self._total())

    def _chunk(
        self, index: int, delta: Delta, logprobs: ChatLogprobs | None = None, reason: str | None = None
    ) -> Chunk:
        return Chunk(ChatCompletionChunk(*self._head, [ChunkChoice(index, delta, logprobs, reason)]))

    def _total(self) -> Usage:
        return usage_of([result for _, result in sorted(self._results.items())], len(self.requests))


def _logprobs(tokens: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> list[TokenLogprob]:
    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token], skip_special_tokens=False)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return [
        TokenLogprob(
            **entry(each.token, each.logprob), top_logprobs=[TopLogprob(**entry(*other)) for other in each.top]
        )
        for each in tokens
    ]
