"""A server with OpenAI's API as the model of an agent: streamed chat completions, through the official client."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from intaglio.errors import IntaglioError, UsageError, one_line
from intaglio.extras import load
from intaglio.runtime.agents.models.chat_stream import ChatStreamReader, MalformedChunkError
from intaglio.runtime.agents.models.model import ModelError, ModelPiece, ModelRequest, exceeds
from intaglio.runtime.generation.requests.message import Message

KEY_VARIABLE = "OPENAI_API_KEY"
KEY = re.compile(r"[!-~]+")  # what a header may have
NO_KEY = "none"  # sent to servers that need no key, as the client wants one
CONNECT_SECONDS = 10.0
RETRIES = 2
SHOWN = 300  # characters of a server's message


class ServerModel:
    """A `Model` behind a URL: `intaglio serve`, vLLM, llama.cpp, OpenAI. An async context manager.

    async with ServerModel("http://127.0.0.1:8000", "llama") as model, model.stream(request) as pieces:
        ...

    A request that finds no connection, no answer within `timeout`, or a server that is busy or fails (408, 409, 429,
    500 and above), is sent again, twice, after 0.5 to 8 seconds or as the server's Retry-After says, up to two minutes.
    Nothing is sent again once the answer has begun. A server that reports no usage gets 0 tokens of prompts, and a
    token for each piece of the answer.
    """

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str | None = None,
        *,
        constrained: bool = False,
        timeout: float = 120.0,
        retries: int = RETRIES,
    ):
        """`url`: with or without a path, which is then /v1; `api_key`: by default that of OPENAI_API_KEY, if it is set.

        `constrained`: the server takes grammars in the field `structured_outputs`, as `intaglio serve` does, and vLLM
        with llguidance; otherwise they are ignored. `timeout`: seconds without an answer, or between two pieces of it.
        Raises `UsageError` for an invalid URL or key, `MissingExtraError` without openai.
        """
        self._base, self._shown = _addresses(url)
        self._key = _checked_key(api_key)
        if not 0 < timeout < float("inf"):
            raise UsageError(f"timeout {timeout}: expected more than 0 seconds.")
        if retries < 0:
            raise UsageError(f"retries {retries}: expected 0 or more.")
        self.name, self.constrained = model, constrained
        self._timeout, self._retries = timeout, retries
        self._library = load("openai")
        self._client: Any = None  # openai.AsyncOpenAI, while it is open
        self._reports_usage = True  # until the server refuses `stream_options`
        self._limit = "max_tokens"  # or "max_completion_tokens", where a server says so

    async def __aenter__(self) -> Self:
        timeout = self._library.Timeout(self._timeout, connect=min(CONNECT_SECONDS, self._timeout))
        self._client = self._library.AsyncOpenAI(
            base_url=self._base, api_key=self._key or NO_KEY, timeout=timeout, max_retries=self._retries
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def names(self) -> list[str]:
        """Return the names of the server's models. Raises `ModelError`, `UsageError`."""
        try:
            return [str(model.id) async for model in await self._opened().models.list()]
        except Exception as error:
            raise self._as_intaglio_error(error) from None

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelPiece]]:
        """See `Model`."""
        try:
            chunks = await self._sent(request)
        except Exception as error:
            raise self._as_intaglio_error(error) from None
        async with aclosing(chunks), aclosing(self._pieces(chunks, request.max_tokens)) as pieces:
            yield pieces

    def _opened(self) -> Any:
        if self._client is None:
            raise ModelError(f"model server {self._shown} is not open. Send requests within `async with`.")
        return self._client

    async def _sent(self, request: ModelRequest) -> Any:
        """Send a request, again if the server takes it with other fields only; return the stream of its chunks."""
        while True:
            try:
                return await self._opened().chat.completions.create(**self._fields(request))
            except self._library.APIStatusError as error:
                if error.status_code not in (400, 422) or not self._adapts(str(error)):
                    raise

    def _adapts(self, message: str) -> bool:
        """Leave out, or rename, the field that a server refuses; return whether there was one."""
        if self._reports_usage and "stream_options" in message:
            self._reports_usage = False
        elif self._limit == "max_tokens" and "max_completion_tokens" in message:
            self._limit = "max_completion_tokens"
        else:
            return False
        return True

    def _fields(self, request: ModelRequest) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.name,
            "messages": [_message(each) for each in request.messages],
            "stream": True,
            "temperature": request.temperature,
            self._limit: request.max_tokens,
        }
        if self._reports_usage:
            fields["stream_options"] = {"include_usage": True}
        if request.stop:
            fields["stop"] = list(request.stop)
        if request.seed is not None:
            fields["seed"] = request.seed
        if request.tools:
            fields["tools"] = [tool.as_function() for tool in request.tools]
            fields["tool_choice"] = request.tool_choice
        if request.grammar is not None and self.constrained:
            fields["extra_body"] = {"structured_outputs": {"grammar": request.grammar}}
        return fields

    async def _pieces(self, chunks: AsyncIterator[Any], tokens: int) -> AsyncGenerator[ModelPiece, None]:
        """Yield the pieces of an answer, which ends after `tokens` even if the server does not obey `max_tokens`."""
        reader = ChatStreamReader()
        try:
            async for chunk in chunks:
                for piece in reader.pieces(chunk):
                    yield piece
                if exceeds(reader.parts, reader.characters, tokens):
                    for piece in reader.cut_off(tokens):
                        yield piece
                    return
        except Exception as error:
            if reader.finish_reason is None or isinstance(error, MalformedChunkError):
                raise self._as_intaglio_error(error) from None
        for piece in self._last(reader):
            yield piece

    def _last(self, reader: ChatStreamReader) -> list[ModelPiece]:
        try:
            return reader.finish()
        except MalformedChunkError as error:
            raise self._as_intaglio_error(error) from None

    def _as_intaglio_error(self, error: Exception) -> IntaglioError:
        """Return any error of a request as one of ours, without the key."""
        if isinstance(error, IntaglioError):
            return error
        kind, message = described(error, f"model server {self._shown}", self.name, self._timeout)
        return kind(message.replace(self._key, "***") if self._key else message)


def _addresses(url: str) -> tuple[str, str]:
    """Return the URL of the API, and what errors show of it: no user and password, no query."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("the URL of the model is invalid, expected http://HOST:PORT or https://HOST/v1. Fix it.")
    path = parts.path.rstrip("/") or "/v1"
    place = (f"[{host}]" if ":" in host else host) + (f":{port}" if port is not None else "")
    return parts._replace(path=path, query="", fragment="").geturl(), f"{parts.scheme}://{place}{path}"


def _checked_key(given: str | None) -> str | None:
    key = (os.environ.get(KEY_VARIABLE, "") if given is None else given).strip()
    if key and not KEY.fullmatch(key):
        where = KEY_VARIABLE if given is None else "the API key"
        raise UsageError(f"{where}: has spaces, or characters that are not ASCII. Copy the key again.")
    return key or None


def _message(message: Message) -> Mapping[str, Any]:
    """Return a message as the API has it: no fields that were left out, arguments of calls as text."""
    found: dict[str, Any] = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
    for call in found.get("tool_calls", ()):
        call["type"] = "function"
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            call["function"]["arguments"] = msgspec.json.encode(arguments).decode()
    return found


def described(error: Exception, where: str, model: str, timeout: float) -> tuple[type[IntaglioError], str]:
    """Return the class of our error, and its line. `where`: the server; `timeout`: its seconds without an answer."""
    openai = load("openai")
    reason = _reason_of(error)
    match error:
        case openai.APITimeoutError():
            return ModelError, f"{where}: no answer within {timeout:g} seconds. Check the server, or allow more time."
        case openai.APIConnectionError():
            return (
                ModelError,
                f"{where}: the connection failed ({reason}). Check the address, and that the server runs.",
            )
        case openai.APIStatusError():
            return _refused(error.status_code, reason, where, model)
        case openai.APIError():
            return ModelError, f"{where}: failed during the answer ({reason}). See the server's log."
        case MalformedChunkError():
            return ModelError, f"{where}: {reason}. Check that it has OpenAI's API, and see its log."
        case ValueError():
            reason = f"the stream has a part that is not JSON ({reason})"
            return ModelError, f"{where}: {reason}. Check that it has OpenAI's API, and see its log."
    return ModelError, f"{where}: {type(error).__name__}: {reason}. Check the address, and see the server's log."


def _refused(status: int, reason: str, where: str, model: str) -> tuple[type[IntaglioError], str]:
    """Return the error for a status: of the request where that is wrong, otherwise of the model."""
    if status in (401, 403):
        return (
            ModelError,
            f"{where}: refuses the API key ({status}: {reason}). Set OPENAI_API_KEY, or give another key.",
        )
    if status == 404:
        return UsageError, f"{where}: has no model {model!r} ({status}: {reason}). Check the name and the address."
    if status == 429:
        return ModelError, f"{where}: takes no more requests ({status}: {reason}). Try again later."
    if status < 500:
        return UsageError, f"{where}: refuses the request ({status}: {reason}). Change it."
    return ModelError, f"{where}: failed ({status}: {reason}). See the server's log."


def _reason_of(error: Exception) -> str:
    """Return the message of an error, or that of its cause, which is more specific for a connection."""
    openai = load("openai")
    if isinstance(error, openai.APIConnectionError) and error.__cause__ is not None:
        return one_line(error.__cause__, SHOWN).rstrip(".") or type(error.__cause__).__name__
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    found = message if isinstance(message, str) else str(error)
    return " ".join(found.split())[:SHOWN].rstrip(".") or type(error).__name__
