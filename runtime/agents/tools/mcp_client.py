"""Tools of MCP servers (Model Context Protocol): reached by an HTTP address, or started as a command.

Each connection lives in a task of its own, so that cancelling the agent never interrupts the end of a server: when the
context is left, its process has ended, and so has the task. Every wait has a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from intaglio.errors import UsageError, one_line
from intaglio.extras import load
from intaglio.runtime.agents.tools.tool import Tool, ToolError

COMMAND = "mcp:"  # begins a command: mcp:npx some-server
START_SECONDS = 30.0  # until a server has listed its tools
CALL_SECONDS = 60.0
CLOSE_SECONDS = 10.0  # a server that ignores the end of its input is killed after 2, and its children after 2 more
MOST_PAGES = 100  # of a server's list of tools
NAME_CHARACTERS = 64  # of a tool, see `Tool`
NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_.-]")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")

_log = logging.getLogger(__name__)


class Server(NamedTuple):
    """A connected server."""

    name: str  # its own, or that of the command or host
    tools: list[Tool]


@asynccontextmanager
async def mcp_tools(
    source: str, start_seconds: float = START_SECONDS, call_seconds: float = CALL_SECONDS
) -> AsyncIterator[Server]:
    """Connect to the server at an address, or start `mcp:COMMAND`, and offer its tools until the context is left.

    A command is divided into words as a shell does, without its expansions; NAME=VALUE before it sets variables of its
    environment, which otherwise holds PATH, HOME, USER, LOGNAME, SHELL and TERM only.

    Raises `UsageError` for a command that cannot be read, and `ToolError` for a server that cannot be started, does not
    answer, or answers with invalid messages. Calls raise `ToolError` for errors of the tool, and of the server.
    """
    load("mcp")
    logging.getLogger("mcp").addHandler(_NOTHING)  # a broken message becomes an error of ours, not a traceback
    connection = _Connection(source, call_seconds)
    try:
        yield await connection.opened(start_seconds)
    finally:
        await connection.close()


_NOTHING = logging.NullHandler()


class _Connection:
    def __init__(self, source: str, call_seconds: float):
        self._source = source
        self._call_seconds = call_seconds
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._broken: Exception | None = None  # the last message that was not JSON-RPC
        self._stop = asyncio.Event()
        self._settled = asyncio.Event()  # `_server` or `_error` is set
        self._server: Server | None = None
        self._error: Exception | None = None
        self._task = asyncio.create_task(self._run(), name=f"mcp server {source:.80}")

    async def opened(self, seconds: float) -> Server:
        """Wait until the server has listed its tools."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), seconds)
        if self._server is None:
            raise self._error or ToolError(
                f"mcp server {self._source!r:.200}: no answer within {seconds:g} s.{self._hint()}"
            )
        return self._server

    async def close(self) -> None:
        """End the connection and its process, also if this is cancelled meanwhile."""
        self._stop.set()
        if not self._settled.is_set():
            self._task.cancel()
        ending = asyncio.create_task(self._end())
        interrupted = False
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                interrupted = True
        if interrupted:
            raise asyncio.CancelledError

    async def _end(self) -> None:
        for _ in range(2):
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            if self._task.done():
                break
            self._task.cancel()
        else:
            _log.warning("mcp server %.80s does not end; it is left running", self._source)
        self._stderr.close()

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = load("mcp").Client(await self._transport(stack), message_handler=self._received)
                await stack.enter_async_context(client)
                tools = [self._tool(client, each) for each in await _listed(client)]
                self._server = Server(self._name(client), tools)
                self._settled.set()
                await self._stop.wait()
        except Exception as error:
            self._error = self._failed(error)
            _log.debug("%s", self._error)
        finally:
            self._settled.set()

    async def _transport(self, stack: AsyncExitStack) -> Any:
        if not self._source.startswith(COMMAND):
            client = load("httpx2").AsyncClient(timeout=self._call_seconds)
            await stack.enter_async_context(client)
            return load("mcp.client.streamable_http").streamable_http_client(self._source, http_client=client)
        variables, words = read_command(self._source)
        stdio = load("mcp.client.stdio")
        parameters = stdio.StdioServerParameters(
            command=words[0], args=words[1:], env=variables, encoding_error_handler="replace"
        )
        return stdio.stdio_client(parameters, errlog=self._stderr)

    async def _received(self, message: Any) -> None:
        if isinstance(message, Exception):
            self._broken = message

    def _name(self, client: Any) -> str:
        if client.server_info is not None and client.server_info.name:
            return str(client.server_info.name)
        if self._source.startswith(COMMAND):
            return os.path.basename(read_command(self._source)[1][0])  # noqa: PTH119  # of a command, not a path
        return urlsplit(self._source).hostname or "server"

    def _tool(self, client: Any, listed: Any) -> Tool:
        async def call(**arguments: Any) -> Any:
            try:
                async with asyncio.timeout(self._call_seconds):
                    result = await client.call_tool(listed.name, arguments)
            except TimeoutError:
                raise ToolError(f"{listed.name:.64}: no result within {self._call_seconds:g} s.") from None
            except Exception as error:
                raise ToolError(f"{listed.name:.64}: {_reason(error)}") from error
            return result_value(result)

        name = NOT_IN_NAMES.sub("_", listed.name)[:NAME_CHARACTERS] or "tool"
        return Tool(name, listed.description or "", _parameters(listed), call)

    def _failed(self, error: Exception) -> Exception:
        if isinstance(error, UsageError | ToolError):
            return error
        return ToolError(f"mcp server {self._source!r:.200}: {_reason(error)}.{self._hint()}")

    def _hint(self) -> str:
        """What the server wrote that may explain why it does not answer."""
        if self._broken is not None:
            return f" It sent a message that is not JSON-RPC: {one_line(self._broken, 200)}"
        if not self._source.startswith(COMMAND):
            return " Check the address."
        size = os.fstat(self._stderr.fileno()).st_size
        lines = os.pread(self._stderr.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), None)
        return f" It wrote: {last:.300}" if last else " Check the command."


def read_command(source: str) -> tuple[dict[str, str], list[str]]:
    """Divide `mcp:NAME=VALUE COMMAND ARGUMENT ...` into variables and words. Raises `UsageError`."""
    try:
        words = shlex.split(source.removeprefix(COMMAND))
    except ValueError as error:
        raise UsageError(f"{source!r:.200}: {one_line(error)}. Expected {COMMAND}COMMAND ARGUMENTS.") from error
    variables = {}
    while words and ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if not words:
        raise UsageError(f"{source!r:.200}: no command. Expected {COMMAND}COMMAND ARGUMENTS.")
    return variables, words


async def _listed(client: Any) -> list[Any]:
    """All pages of the server's list of tools."""
    tools: list[Any] = []
    cursor = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools
    raise ToolError(f"the list of tools has more than {MOST_PAGES} pages.")


def _parameters(listed: Any) -> dict[str, Any]:
    """The schema of a tool's arguments. Raises `ToolError` for an invalid schema."""
    schema = {**listed.input_schema, "type": "object"}
    try:
        load("jsonschema").Draft202012Validator.check_schema(schema)
    except load("jsonschema").SchemaError as error:
        raise ToolError(
            f"tool {listed.name!r:.80}: invalid JSON schema: {' '.join(error.message.split())[:300]}"
        ) from error
    return schema


def result_value(result: Any) -> Any:
    """The value of a `CallToolResult`: its structured content, or its text. Raises `ToolError` if it is an error.

    Servers wrap what is not an object as {"result": value}, which is unwrapped.
    """
    text = "\n".join(_block_text(block) for block in result.content)
    if result.is_error:
        raise ToolError(" ".join(text.split())[:500] or "the tool failed without a message.")
    structured = result.structured_content
    if structured is None:
        return text
    if isinstance(structured, dict) and list(structured) == ["result"]:
        return structured["result"]
    return structured


def _block_text(block: Any) -> str:
    """The text of a content block; of an image or a sound, its type and size."""
    match block.type:
        case "text":
            return str(block.text)
        case "resource":
            text = getattr(block.resource, "text", None)
            return str(text) if text is not None else f"[{block.resource.mime_type} {block.resource.uri}]"
        case "resource_link":
            return f"[{block.name} {block.uri}]"
        case _:
            return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes]"


def _reason(error: BaseException) -> str:
    """Why a connection failed, on one line; of a group of errors, the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    with contextlib.suppress(AttributeError):
        return " ".join(str(error.message).split())[:300]  # type: ignore[attr-defined]  # MCPError
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} {error.filename or ''}".strip()
    return f"{type(error).__name__}: {one_line(error, 300)}"
