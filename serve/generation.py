"""Run the texts of an HTTP request: as a whole response, or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec

from intaglio.runtime.generation.events import Failed, Finished, Piece
from intaglio.runtime.generation.generated import Generated
from intaglio.serve.decoder_worker import ChoiceEvent, DecoderWorker, GenerationStream
from intaglio.serve.errors import ApiError, api_error
from intaglio.serve.formatter import Formatter

Report = Callable[[Generated], None]  # called with each finished text


async def start(worker: DecoderWorker, formatter: Formatter, timeout: float) -> GenerationStream:
    """Queue the texts of a request. Raises `ApiError` for invalid prompts, and if the queue is full."""
    try:
        stream = await worker.submit(formatter.requests)
    except Exception as error:
        raise api_error(error) from error
    too_late = ApiError(504, f"the response took more than {timeout:g} seconds. Ask for fewer tokens.", "timeout_error")
    stream.expire_after(timeout, too_late)
    return stream


async def whole(stream: GenerationStream, formatter: Formatter, report: Report) -> msgspec.Struct:
    """Run until all texts are finished; return the response. Raises `ApiError`."""
    async with stream:
        while events := await stream.next():
            for index, event in _merged(events):
                formatter.take(index, event)
                if isinstance(event, Finished):
                    report(event.result)
    return formatter.response()


async def streamed(stream: GenerationStream, formatter: Formatter, report: Report) -> AsyncIterator[bytes]:
    """Yield server-sent events until all texts are finished; an error is the last one of them."""
    async with stream:
        try:
            for chunk in formatter.begin():
                yield chunk.encode()
            while events := await stream.next():
                chunks = []
                for index, event in _merged(events):
                    chunks += formatter.take(index, event)
                    if isinstance(event, Finished):
                        report(event.result)
                if chunks:
                    yield b"".join([chunk.encode() for chunk in chunks])
            yield b"".join(chunk.encode() for chunk in formatter.end()) + formatter.last
        except asyncio.CancelledError:
            raise
        except Exception as error:
            yield b"".join(chunk.encode() for chunk in formatter.failure(api_error(error)))


def _merged(events: Sequence[ChoiceEvent]) -> Iterator[tuple[int, Piece | Finished]]:
    """Join pieces of a text that arrived together. Raises the error of a text that failed."""
    pieces: dict[int, list[Piece]] = {}
    for index, event in events:
        if isinstance(event, Piece):
            pieces.setdefault(index, []).append(event)
            continue
        if isinstance(event, Failed):
            raise api_error(event.error) from event.error
        if index in pieces:
            yield index, Piece.joined(pieces.pop(index))
        yield index, event
    for index, some in pieces.items():
        yield index, Piece.joined(some)
