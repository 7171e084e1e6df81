"""An HTTP server in the event loop of the test that answers each request with given bytes, pauses, and silence."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

SILENCE = 3600.0  # seconds, until the client disconnects
CUT = b""  # closes the connection
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
Step = bytes | float  # to send, or seconds to wait


@dataclass
class ScriptedServer:
    """The responses of the server, and the received requests."""

    answers: list[Sequence[Step]]  # one for each request; the last one for all others
    url: str = ""
    bodies: list[Any] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    open: int = 0  # connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.open += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer a request; return whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((line[15:] for line in head.split("\r\n") if line.lower().startswith("content-length:")), "0")
        body = await reader.readexactly(int(length))
        self.heads.append(head)
        self.bodies.append(json.loads(body) if body else None)
        for step in self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]:
            if isinstance(step, float):
                gone = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({gone}, timeout=step)
                if gone.done():
                    gone.exception()  # a client that resets its connection
                    return False
                gone.cancel()
                await asyncio.wait({gone})
            elif step == CUT:
                writer.transport.abort()
                return False
            else:
                writer.write(step)
                await writer.drain()
        return True


def event(data: object) -> bytes:
    """A server-sent event, `data` as JSON unless it is bytes."""
    sent = b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"
    return f"{len(sent):x}\r\n".encode() + sent + b"\r\n"


def chunk(text: str | None = None, reason: str | None = None, **delta: Any) -> bytes:
    """A chunk of a chat completion."""
    given = {**delta, **({} if text is None else {"content": text})}
    return event({"id": "c", "choices": [{"index": 0, "delta": given, "finish_reason": reason}]})


def stream(*events: bytes) -> list[Step]:
    """A complete stream."""
    return [STREAM, *events, event(b"[DONE]"), END]


def status(code: int, body: object, *headers: str) -> list[Step]:
    """A response with a JSON body."""
    sent = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", "Content-Type: application/json", *headers]
    return ["\r\n".join([*lines, f"Content-Length: {len(sent)}", "", ""]).encode() + sent]


def error(code: int, message: str, *headers: str) -> list[Step]:
    """An error response."""
    return status(code, {"error": {"message": message, "type": "error"}}, *headers)


@asynccontextmanager
async def scripted(*answers: Sequence[Step]) -> AsyncIterator[ScriptedServer]:
    """Run the server on a free port."""
    behaviour = ScriptedServer(list(answers))
    server = await asyncio.start_server(behaviour.serve, "127.0.0.1", 0)
    behaviour.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield behaviour
    finally:
        server.close()
        for _ in range(200):  # connections close with their clients
            if not behaviour.open:
                break
            await asyncio.sleep(0.01)


@contextmanager
def scripted_in_a_thread() -> Iterator[ScriptedServer]:
    """Run the server in its own event loop; set its `answers` before each request."""
    started: list[ScriptedServer] = []
    ready, over = threading.Event(), threading.Event()

    async def main() -> None:
        async with scripted([]) as server:
            started.append(server)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    ready.wait()
    try:
        yield started[0]
    finally:
        over.set()
        thread.join()
