"""An asynchronous client of the OpenAI HTTP API that measures: streamed completions, chats, embeddings.

Source of the protocol: the OpenAI API reference (completions, chat completions, embeddings; streams of server-sent
events that end with `data: [DONE]`).
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from intaglio.errors import one_line
from intaglio.extras import load

if TYPE_CHECKING:
    import aiohttp

RESIDENT = re.compile(r"^process_resident_memory_bytes (\S+)$", re.M)  # of Prometheus' process collector
JSON = {"Content-Type": "application/json"}
SHOWN = 200  # characters of a server's message

Answer = TypeVar("Answer")


class RequestError(Exception):
    """A request that was not answered in full."""

    def __init__(self, kind: str, message: str = "", retry_after: float | None = None):
        """`kind`: to count by; `message`: the server's; `retry_after`: seconds that the server asks to wait."""
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind, self.message, self.retry_after = kind, message, retry_after


class Chunk(msgspec.Struct):
    """One event of a stream: new characters and numbers of tokens, if it has them."""

    text: str = ""
    finish_reason: str | None = None  # in the last event with text
    tokens: int | None = None  # of the whole text, in the last event
    prompt_tokens: int = 0


class Reply(msgspec.Struct):
    """A finished text; times are from `time.perf_counter`."""

    text: str
    tokens: int  # as the server counts them, or else its events with text
    prompt_tokens: int  # 0: not reported
    first: float  # of the first characters
    last: float  # of the last
    finish_reason: str | None


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None  # of a completion
    delta: _Delta | None = None  # of a chat
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Embeddings(msgspec.Struct):
    data: list[Any]
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


class Client:
    """Connections to one server. An asynchronous context manager.

    Its own work is part of the measurement where client and server share a machine: aiohttp parses HTTP in C.
    Raises `MissingExtraError` without aiohttp; its methods raise `RequestError`.
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 600.0):
        """`url`: with or without the final /v1; `key`: sent as a bearer token; `timeout`: seconds without an answer."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._http = load("aiohttp")
        self._headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        http = self._http
        self._session = http.ClientSession(
            headers=self._headers,
            timeout=http.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=self._timeout),
            connector=http.TCPConnector(limit=0),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._session is not None, "it was entered"
        await self._session.close()

    async def models(self) -> list[str]:
        """The names of the server's models."""
        async with self._answer("GET", "/v1/models") as response:
            found = _decoded(await response.read(), _Models)
        return [each.id for each in found.data]

    async def metrics(self) -> str:
        """The server's metrics, in Prometheus' text format."""
        async with self._answer("GET", "/metrics") as response:
            return (await response.read()).decode(errors="replace")

    async def resident_bytes(self) -> int | None:
        """The resident memory of the server's process, where its metrics have it."""
        with suppress(RequestError):
            if found := RESIDENT.search(await self.metrics()):
                return int(float(found[1]))
        return None

    async def embed(self, body: Mapping[str, object]) -> tuple[int, int]:
        """Request embeddings; return the numbers of texts and of their tokens."""
        async with self._answer("POST", "/v1/embeddings", body) as response:
            found = _decoded(await response.read(), _Embeddings)
        return len(found.data), found.usage.prompt_tokens

    async def complete(self, path: str, body: Mapping[str, object]) -> Reply:
        """Request a text by `path`, "/v1/completions" or "/v1/chat/completions", and read its stream to the end."""
        pieces: list[str] = []
        first = last = 0.0
        tokens, prompt_tokens, reason = None, 0, None
        async for chunk in self.stream(path, body):
            reason = chunk.finish_reason or reason
            if chunk.text or (chunk.finish_reason and not pieces):
                last = time.perf_counter()
                first = first or last
                pieces.append(chunk.text)
            if chunk.tokens is not None:
                tokens, prompt_tokens = chunk.tokens, chunk.prompt_tokens
        count = len(pieces) if tokens is None else tokens
        return Reply("".join(pieces), count, prompt_tokens, first, last, reason)

    async def stream(self, path: str, body: Mapping[str, object]) -> AsyncIterator[Chunk]:
        """Yield the events of a stream; to leave early, close the iterator, which closes the connection."""
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with self._answer("POST", path, asked) as response:
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise RequestError("not a stream", f"content-type {kind or 'unknown'!r}")
            finished = False
            async for line in _lines(response.content.iter_any()):
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                chunk = _chunk(_decoded(data, _Event))
                finished = finished or chunk.finish_reason is not None
                yield chunk
            if not finished:
                raise RequestError("stream ended early")

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its response, whose status is 200."""
        assert self._session is not None, "it was entered"
        http = self._http
        data, headers = (None, None) if body is None else (msgspec.json.encode(body), JSON)
        try:
            async with self._session.request(method, self.url + path, data=data, headers=headers) as response:
                if response.status != 200:
                    raise await _refused(response)
                yield response
        except TimeoutError as error:  # aiohttp's are of this kind
            raise RequestError("timeout", one_line(error, SHOWN)) from error
        except http.ClientConnectorError as error:
            raise RequestError("cannot connect", one_line(error, SHOWN)) from error
        except http.InvalidURL as error:
            raise RequestError("invalid URL", one_line(error, SHOWN)) from error
        except http.ClientError as error:
            raise RequestError("connection closed", one_line(error, SHOWN)) from error


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Split what arrives into lines."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _refused(response: aiohttp.ClientResponse) -> RequestError:
    """The error of a response that is not 200."""
    text = (await response.read()).decode(errors="replace")
    try:
        message = _decoded(text, _Refusal).error.message
    except RequestError:  # of a proxy, in words of its own
        message = text
    wait = response.headers.get("retry-after", "")
    seconds = float(wait) if wait.isdecimal() else None  # it may also be a date
    return RequestError(f"HTTP {response.status}", " ".join(message.split())[:SHOWN], seconds)


def _chunk(event: _Event) -> Chunk:
    """Read one event of a completion or a chat."""
    if event.error is not None:
        raise RequestError("error in the stream", str(event.error)[:SHOWN])
    chunk = Chunk()
    for choice in event.choices:
        chunk.text += choice.text or (choice.delta.content if choice.delta else None) or ""
        chunk.finish_reason = chunk.finish_reason or choice.finish_reason
    if event.usage is not None:
        chunk.tokens, chunk.prompt_tokens = event.usage.completion_tokens, event.usage.prompt_tokens
    return chunk


def _decoded(data: bytes | str, kind: type[Answer]) -> Answer:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise RequestError("invalid JSON", one_line(error, SHOWN)) from error
