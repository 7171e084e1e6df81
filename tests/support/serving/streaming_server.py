"""A small HTTP server with the streaming protocol of the OpenAI API, and failures on request."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

PAUSE = 0.02  # seconds before the first token, and
APART = 0.005  # between two tokens
RESIDENT = 123_456_789  # bytes that its metrics report


@dataclass
class StreamingServer:
    """The behaviour of the server, which a test may change while it runs, and the received requests."""

    url: str = ""
    key: str | None = None
    behaviour: str = "good"  # or "fails", "breaks", "ends early", "reports an error", "garbage", "json"
    busy: int = 0  # number of first requests to refuse with 429
    retry_after: str = "1"
    usage: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    running: int = 0
    most: int = 0  # concurrent requests

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return _error(401, "the key is wrong")
        return JSONResponse({"object": "list", "data": [{"id": "first", "object": "model"}, {"id": "second"}]})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        return PlainTextResponse(
            f"# TYPE process_resident_memory_bytes gauge\nprocess_resident_memory_bytes {RESIDENT}\n"
        )

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings."""
        body = await self._asked(request)
        if self.behaviour == "fails":
            return _error(500, "it broke")
        data = [{"object": "embedding", "index": place, "embedding": [0.5]} for place in range(len(body["input"]))]
        return JSONResponse({"object": "list", "data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}})

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions and /v1/chat/completions."""
        body = await self._asked(request)
        if self.busy:
            self.busy -= 1
            return _error(429, "too many requests wait", {"Retry-After": self.retry_after})
        if self.behaviour == "fails":
            return _error(500, "it broke")
        if self.behaviour == "json":
            return JSONResponse({"choices": [{"text": "whole"}]})
        return StreamingResponse(self._events(body, "messages" in body), media_type="text/event-stream")

    async def _asked(self, request: Request) -> dict[str, Any]:
        self.times.append(time.perf_counter())
        self.bodies.append(await request.json())
        return self.bodies[-1]

    async def _events(self, body: dict[str, Any], chat: bool) -> AsyncIterator[str]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(PAUSE)
            if chat:
                yield _event({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
            for number in range(body["max_tokens"]):
                if number == 2 and self.behaviour != "good":
                    if self.behaviour == "breaks":
                        raise ConnectionResetError("on purpose")
                    if self.behaviour == "reports an error":
                        yield _event({"error": {"message": "the engine failed", "code": 500}})
                    if self.behaviour == "garbage":
                        yield "data: {not JSON\n\n"
                    return
                text = f"t{number} "
                choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
                last = number == body["max_tokens"] - 1
                yield _event({"choices": [{"index": 0, **choice, "finish_reason": "length" if last else None}]})
                await asyncio.sleep(APART)
            if self.usage:
                yield _event({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": body["max_tokens"]}})
            yield "data: [DONE]\n\n"
        finally:
            self.running -= 1


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "type": "error"}}, status, headers)


@contextmanager
def serving() -> Iterator[StreamingServer]:
    """Run the server on a free port."""
    behaviour = StreamingServer()
    routes = [
        Route("/v1/models", behaviour.models),
        Route("/metrics", behaviour.metrics),
        Route("/v1/embeddings", behaviour.embeddings, methods=["POST"]),
        Route("/v1/completions", behaviour.completions, methods=["POST"]),
        Route("/v1/chat/completions", behaviour.completions, methods=["POST"]),
    ]
    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=routes), port=0, log_level="critical", ws="none", lifespan="off")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    behaviour.url = f"http://127.0.0.1:{port}"
    try:
        yield behaviour
    finally:
        server.should_exit = True
        thread.join()
