"""POST /v1/responses: OpenAI's Responses API, for text and function tools. Nothing is stored between requests."""

from __future__ import annotations

import time
from copy import deepcopy
from typing import Any, Literal

import msgspec

from intaglio.runtime.generation.answer import answers_for
from intaglio.runtime.generation.parts import Part
from intaglio.runtime.generation.tool_calls.events import ArgumentsPiece, CallEnded, CallStarted, ContentPiece
from intaglio.serve.endpoints.response_items import (
    FunctionTool,
    InputItem,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputText,
    TextOptions,
    chat_choice,
    chat_tools,
    conversation_of,
    new_id,
)
from intaglio.serve.models.model import DecoderModel
from intaglio.serve.requests.constraints import JsonSchema, ResponseFormat
from intaglio.serve.requests.conversation_fields import ConversationFields, Metadata, conversation_requests
from intaglio.serve.requests.generation_fields import Count
from intaglio.serve.responses.errors import ApiError, ErrorDetails, invalid, unsupported
from intaglio.serve.responses.formatter import Chunk, Formatter


class ResponsesRequest(ConversationFields, kw_only=True):
    """The body of a request."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextOptions | None = None


class CachedTokens(msgspec.Struct):
    """Details of the input's tokens."""

    cached_tokens: int


class ReasoningTokens(msgspec.Struct):
    """Details of the output's tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class Incomplete(msgspec.Struct):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "stop"] = "max_output_tokens"  # "stop": a stop string cut a call off


class ResponseObject(msgspec.Struct):
    """The response, and its state in events."""

    id: str
    created_at: float
    model: str
    status: str
    output: list[OutputItem]
    tools: list[FunctionTool]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: TextOptions
    temperature: float
    top_p: float
    instructions: str | None
    max_output_tokens: int | None
    metadata: Metadata
    user: str | None
    prompt_cache_key: str | None
    safety_identifier: str | None
    usage: ResponseUsage | None = None
    incomplete_details: Incomplete | None = None
    error: ErrorDetails | None = None
    previous_response_id: None = None
    store: bool = False
    background: bool = False
    truncation: Literal["disabled"] = "disabled"
    service_tier: Literal["default"] = "default"
    object: Literal["response"] = "response"


class Event(msgspec.Struct, omit_defaults=True):
    """An event of a stream; its fields depend on `type`."""

    type: str
    sequence_number: int | msgspec.UnsetType = msgspec.UNSET
    response: ResponseObject | None = None
    item: OutputItem | None = None
    item_id: str | None = None
    output_index: int | msgspec.UnsetType = msgspec.UNSET
    content_index: int | msgspec.UnsetType = msgspec.UNSET
    part: OutputText | None = None
    delta: str | None = None
    text: str | None = None
    arguments: str | None = None
    name: str | None = None
    logprobs: list[Any] | None = None


class ResponseFormatter(Formatter):
    """Formats a text as a response of items: messages and calls, in the order in which they were written."""

    prompt = "input"
    last = b""

    def __init__(self, fields: ResponsesRequest, model: DecoderModel, max_choices: int):
        """Raises `ApiError` for fields out of range."""
        if fields.n != 1:
            raise invalid("n: /v1/responses returns one response. Leave it out.", "n")
        if fields.reports_usage:
            raise unsupported("stream_options.include_usage")
        options = fields.text or TextOptions()
        tools, choice = fields.tools or [], fields.tool_choice
        self.requests, calling = conversation_requests(
            fields,
            model,
            conversation_of(fields.instructions, fields.input),
            _response_format(options),
            chat_tools(tools),
            chat_choice(choice),
            fields.max_output_tokens,
        )
        self.streams = fields.stream
        self._answer = answers_for(1, calling)[0]
        self._events = 0
        self._open: OutputItem | None = None  # the last item of the output, while it grows
        self._response = ResponseObject(
            id=new_id("resp"),
            created_at=float(int(time.time())),
            model=model.name,
            status="in_progress",
            output=[],
            tools=tools,
            tool_choice=choice or "auto",
            parallel_tool_calls=fields.parallel_tool_calls,
            text=options,
            temperature=fields.temperature,
            top_p=fields.top_p,
            instructions=fields.instructions,
            max_output_tokens=fields.max_output_tokens,
            metadata=fields.metadata or {},
            user=fields.user,
            prompt_cache_key=fields.prompt_cache_key,
            safety_identifier=fields.safety_identifier,
        )

    def begin(self) -> list[Chunk]:
        """See `Formatter`."""
        return [self._chunk(f"response.{what}", response=self._response) for what in ("created", "in_progress")]

    def take(self, part: Part) -> list[Chunk]:
        """See `Formatter`."""
        chunks: list[Chunk] = []
        for event in self._answer.take(part):
            match event:
                case ContentPiece():
                    if not isinstance(self._open, OutputMessage):
                        chunks += [*self._close("completed"), *self._add_message()]
                    chunks.append(self._grow(event.text))
                case CallStarted():
                    call = OutputCall(new_id("fc"), event.id, event.name, "", "in_progress")
                    chunks += [*self._close("completed"), self._add(call)]
                case ArgumentsPiece():
                    chunks.append(self._grow(event.text))
                case CallEnded():
                    chunks += self._close("completed")
        if part.result is not None:
            chunks += self._finish()
        return chunks

    def end(self) -> list[Chunk]:
        """See `Formatter`."""
        return [self._chunk(f"response.{self._response.status}", response=self._response)]

    def response(self) -> ResponseObject:
        """See `Formatter`."""
        return self._response

    def failure(self, error: ApiError) -> list[Chunk]:
        """See `Formatter`."""
        self._response.status, self._response.error = "failed", error.body.error
        return [self._chunk("response.failed", response=self._response)]

    def _finish(self) -> list[Chunk]:
        result = self._answer.result
        assert result is not None, "the text has ended"
        response, read, written = self._response, result.prompt_tokens, len(result.tokens)
        if self._answer.finish_reason == "length":
            response.incomplete_details = Incomplete()
        elif self._answer.cut_off:
            response.incomplete_details = Incomplete("stop")
        response.status = "completed" if response.incomplete_details is None else "incomplete"
        response.usage = ResponseUsage(
            read, CachedTokens(result.reused_tokens), written, ReasoningTokens(), read + written
        )
        return self._close(response.status)

    def _add_message(self) -> list[Chunk]:
        message = OutputMessage(new_id("msg"), "in_progress", [])
        added = self._add(message)
        message.content.append(OutputText(""))
        part = self._chunk("response.content_part.added", item=message, content=True, part=message.content[0])
        return [added, part]

    def _add(self, item: OutputItem) -> Chunk:
        self._response.output.append(item)
        self._open = item
        return self._chunk("response.output_item.added", item=item, full=True)

    def _grow(self, text: str) -> Chunk:
        """Add characters to the open item."""
        item = self._open
        if isinstance(item, OutputMessage):
            item.content[0].text += text
            return self._chunk("response.output_text.delta", item=item, content=True, delta=text, logprobs=[])
        assert item is not None, "a call was started"
        item.arguments += text
        return self._chunk("response.function_call_arguments.delta", item=item, delta=text)

    def _close(self, status: str) -> list[Chunk]:
        """Finish the open item, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return []
        item.status = status
        if isinstance(item, OutputMessage):
            text = item.content[0]
            chunks = [
                self._chunk("response.output_text.done", item=item, content=True, text=text.text, logprobs=[]),
                self._chunk("response.content_part.done", item=item, content=True, part=text),
            ]
        else:
            done = "response.function_call_arguments.done"
            chunks = [self._chunk(done, item=item, arguments=item.arguments, name=item.name)]
        return [*chunks, self._chunk("response.output_item.done", item=item, full=True)]

    def _chunk(
        self, kind: str, *, item: OutputItem | None = None, full: bool = False, content: bool = False, **fields: Any
    ) -> Chunk:
        """The next event; it holds the `full` item, or its id. It is encoded later, so items are copied."""
        event = Event(kind, self._events, **fields)
        self._events += 1
        if event.response is not None:
            event.response = deepcopy(event.response)
        if item is not None:
            event.output_index = len(self._response.output) - 1
            if full:
                event.item = deepcopy(item)
            else:
                event.item_id = item.id
            if content:
                event.content_index = 0
        if event.part is not None:
            event.part = deepcopy(event.part)
        return Chunk(event, kind)


def _response_format(options: TextOptions) -> ResponseFormat:
    form = options.format
    if form.type != "json_schema":
        if form.schema is not None:
            unused = f"text.format.schema: not for the type {form.type}. Leave it out, or set the type to json_schema."
            raise invalid(unused, "text.format.schema")
        return ResponseFormat(form.type)
    if form.schema is None:
        raise invalid("text.format.schema: is missing. Add it.", "text.format.schema")
    return ResponseFormat("json_schema", JsonSchema(form.name or "response", form.schema))
