"""Run the texts of an HTTP request: as a full response, or as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from intaglio.runtime.generation.parts import parts_of
from intaglio.runtime.generation.worker import DecoderWorker, GenerationStream
from intaglio.serve.monitoring.observation import Observation
from intaglio.serve.responses.errors import ApiError, api_error
from intaglio.serve.responses.formatter import Formatter


async def start(worker: DecoderWorker, formatter: Formatter, timeout: float) -> GenerationStream:
    """Queue the texts of a request. Raises `ApiError` for invalid prompts, and if the queue is full."""
    try:
        stream = await worker.submit(formatter.requests)
    except Exception as error:
        raise api_error(error, formatter.prompt) from error
    too_late = ApiError(
        504, f"the response took more than {timeout:g} seconds. Reduce the number of tokens.", "timeout_error"
    )
    stream.expire_after(timeout, too_late)
    return stream


async def full_response(stream: GenerationStream, formatter: Formatter, observation: Observation) -> msgspec.Struct:
    """Run until all texts are finished; return the response. Raises `ApiError`."""
    for state in stream.states:
        state.defer_detokenization()  # no pieces are streamed
    async with stream:
        try:
            while events := await stream.next():
                for part in parts_of(events):
                    formatter.take(part)
                    observation.take(part, stream)
        except Exception as error:
            raise api_error(error) from error
        finally:
            observation.leave(stream)
    return formatter.response()


async def streamed(stream: GenerationStream, formatter: Formatter, observation: Observation) -> AsyncIterator[bytes]:
    """Yield server-sent events until all texts are finished; an error is the last one of them."""
    async with stream:
        try:
            for chunk in formatter.begin():
                yield chunk.encode()
            while events := await stream.next():
                chunks = []
                for part in parts_of(events):
                    chunks += formatter.take(part)
                    observation.take(part, stream)
                if chunks:
                    yield b"".join([chunk.encode() for chunk in chunks])
            yield b"".join(chunk.encode() for chunk in formatter.end()) + formatter.last
        except Exception as error:
            yield b"".join(chunk.encode() for chunk in formatter.failure(api_error(error)))
        finally:
            observation.leave(stream)
