"""The contract of an endpoint that generates text: events in, response or stream chunks out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from intaglio.runtime.generation.parts import Part
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.serve.responses.errors import ApiError


class Chunk(NamedTuple):
    """One server-sent event."""

    data: msgspec.Struct
    event: str | None = None  # its name, in APIs that name their events

    def encode(self) -> bytes:
        """The bytes to send."""
        named = b"" if self.event is None else b"event: " + self.event.encode() + b"\n"
        return named + b"data: " + msgspec.json.encode(self.data) + b"\n\n"


class Formatter(ABC):
    """Turns the events of an HTTP request's texts into one response, or into the chunks of a stream."""

    requests: Sequence[GenerationRequest]  # one per text
    prompt: str  # the field of the request that holds the prompts
    streams: bool  # whether the client wants a stream
    last: bytes = b"data: [DONE]\n\n"  # the end of a stream

    def begin(self) -> list[Chunk]:
        """The chunks before the first token."""
        return []

    @abstractmethod
    def take(self, part: Part) -> list[Chunk]:
        """Process a part of a text; return its chunks."""

    def end(self) -> list[Chunk]:
        """The chunks after the last text has finished."""
        return []

    @abstractmethod
    def response(self) -> msgspec.Struct:
        """The full response, after the last text has finished."""

    def failure(self, error: ApiError) -> list[Chunk]:
        """The chunks for an error after the stream has begun."""
        return [Chunk(error.body)]
