"""Read the chunks of a streamed chat completion: text, and tool calls whose parts come one after another."""

from __future__ import annotations

from typing import Any

import msgspec

from intaglio.errors import one_line
from intaglio.files.json_decoder import json_decoder
from intaglio.runtime.agents.models.model import End, ModelPiece, Usage
from intaglio.runtime.generation.requests.message import FunctionCall, ToolCall
from intaglio.runtime.generation.tool_calls.tool_format import long_id

# The API's finish reasons -> ours. An answer with another one, such as a filter, is incomplete.
REASONS = {"stop": "stop", "length": "length", "tool_calls": "tool_calls", "function_call": "tool_calls"}


class MalformedChunkError(Exception):
    """A stream that is not one of OpenAI's API, or that ends too early."""


class FunctionDelta(msgspec.Struct):
    """A function's name, and the next characters of its arguments; some servers send an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallDelta(msgspec.Struct):
    """The next part of a tool call."""

    index: int | None = None
    id: str | None = None
    function: FunctionDelta | None = None


class Delta(msgspec.Struct):
    """The next part of an answer's message."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


class Choice(msgspec.Struct):
    """The next part of an answer."""

    delta: Delta | None = None
    finish_reason: str | None = None


class TokensDetails(msgspec.Struct):
    """Details of the prompt's tokens."""

    cached_tokens: int | None = None


class TokenCounts(msgspec.Struct):
    """The tokens of a request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: TokensDetails | None = None


class StreamChunk(msgspec.Struct):
    """An event of the stream; only the fields that are used."""

    choices: list[Choice] | None = None
    usage: TokenCounts | None = None


class _Call:
    """A tool call so far."""

    def __init__(self, delta: CallDelta):
        self.index, self.id = delta.index, delta.id
        self.name, self.arguments = "", ""
        self.given = False

    def add(self, delta: CallDelta) -> None:
        """Add the next part. Raises `MalformedChunkError` for a call that was given already."""
        function = delta.function or FunctionDelta()
        self.id = self.id or delta.id
        arguments = function.arguments or ""
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        if self.given and text:
            raise MalformedChunkError(f"tool call {self.name!r:.80} continues after its end")
        self.name = self.name or function.name or ""
        self.arguments += text

    @property
    def complete(self) -> bool:
        """Whether the arguments are a whole JSON object."""
        try:
            msgspec.json.decode(self.arguments, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def piece(self) -> ToolCall:
        """Return the call, with an id if the server gave none."""
        if not self.name:
            raise MalformedChunkError("a tool call has no name")
        self.given = True
        return ToolCall(FunctionCall(self.name, self.arguments or "{}"), self.id or long_id(), "function")


class ChatStreamReader:
    """Turns the chunks of one answer into pieces. Raises `MalformedChunkError` for anything else."""

    def __init__(self) -> None:
        json_decoder(StreamChunk)  # several threads may convert to it
        self.finish_reason: str | None = None  # the API's, once there is one
        self._calls: list[_Call] = []
        self._counts: TokenCounts | None = None
        self.parts = self.characters = 0  # chunks with a part of the answer, or of reasoning, and their text

    def pieces(self, chunk: Any) -> list[ModelPiece]:
        """Return the text of a chunk of the client, and the calls that are complete as another one begins."""
        try:
            plain = chunk.model_dump(exclude_unset=True, warnings=False) if hasattr(chunk, "model_dump") else chunk
            read = msgspec.convert(plain, StreamChunk)
        except (msgspec.ValidationError, TypeError, ValueError, RecursionError) as error:
            raise MalformedChunkError(f"sent a malformed chunk ({one_line(error, 200)})") from error
        self._counts = read.usage or self._counts
        pieces: list[ModelPiece] = []
        for choice in (read.choices or ())[:1]:
            delta = choice.delta or Delta()
            self.finish_reason = choice.finish_reason or self.finish_reason
            text = (delta.content or "") + (delta.refusal or "")
            reasoning = delta.reasoning_content or delta.reasoning or ""
            self.parts += bool(text or reasoning or delta.tool_calls)
            self.characters += len(text) + len(reasoning)
            if text:
                pieces.append(text)
            for each in delta.tool_calls or ():
                pieces += self._called(each)
        return pieces

    def cut_off(self, tokens: int) -> list[ModelPiece]:
        """Return the end of an answer that the server does not end at `tokens`."""
        self.finish_reason, self.parts = "length", max(self.parts, tokens)
        return self.finish()

    def finish(self) -> list[ModelPiece]:
        """Return the calls that are left, and the end; a call that `max_tokens` cut off is dropped."""
        if self.finish_reason is None:
            raise MalformedChunkError("the stream ended before the answer did")
        reason = REASONS.get(self.finish_reason)
        if reason is None:
            raise MalformedChunkError(f"the answer was ended by the server (finish_reason {self.finish_reason!r:.80})")
        whole = [call for call in self._calls if not call.given and (reason != "length" or call.complete)]
        pieces: list[ModelPiece] = [call.piece() for call in whole]
        if reason != "length":
            reason = "tool_calls" if self._calls else "stop"
        counts = self._counts or TokenCounts(0, self.parts)
        details = counts.prompt_tokens_details or TokensDetails()
        usage = Usage(counts.prompt_tokens, details.cached_tokens or 0, counts.completion_tokens, 1)
        return [*pieces, End(usage, reason)]

    def _called(self, delta: CallDelta) -> list[ModelPiece]:
        """Add a part of a call; return the complete calls before it if it begins one."""
        call = self._call_of(delta)
        pieces: list[ModelPiece] = []
        if call is None:
            pieces = [each.piece() for each in self._calls if not each.given and each.name and each.complete]
            call = _Call(delta)
            self._calls.append(call)
        before = len(call.arguments)
        call.add(delta)
        self.characters += len(call.arguments) - before
        return pieces

    def _call_of(self, delta: CallDelta) -> _Call | None:
        """Return the call that a part belongs to; None if it begins one.

        By the index; some servers send whole calls without one, or all with the same one and different ids.
        """
        if delta.index is None:
            begins = delta.id is not None or (delta.function is not None and delta.function.name is not None)
            return None if begins or not self._calls else self._calls[-1]
        known = next((call for call in reversed(self._calls) if call.index == delta.index), None)
        if known is not None and delta.id and known.id and delta.id != known.id:
            return None
        return known
