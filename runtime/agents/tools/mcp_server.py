"""Our tools as an MCP server, over standard input and output or HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from intaglio.errors import UsageError, one_line
from intaglio.extras import load
from intaglio.runtime.agents.tools.caller import call_tool
from intaglio.runtime.agents.tools.tool import Tool, ToolError
from intaglio.version import __version__

Transport = Literal["stdio", "http"]
PATH = "/mcp"
CALL_SECONDS = 60.0  # where the tool has no limit of its own
GRACE_SECONDS = 5  # for running calls, when an HTTP server stops
BACKLOG = 128


async def serve_tools(
    tools: Sequence[Tool],
    transport: Transport = "stdio",
    host: str = "127.0.0.1",
    port: int = 8000,
    listening: Callable[[str], None] | None = None,
) -> None:
    """Serve `tools` until the input ends (stdio), a signal comes (http), or this is cancelled.

    Over stdio, what tools print goes to the standard error. Over HTTP, `listening` is called with the address, whose
    port was chosen by the system if `port` is 0. There is no authentication: whoever reaches the address may call the
    tools. Raises `UsageError` for an address that cannot be listened on.
    """
    server = _server(tools)
    if transport == "stdio":
        async with load("mcp").stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
        return
    with contextlib.closing(_bound(host, port)) as bound:
        shown = f"[{host}]" if ":" in host else host
        if listening is not None:
            listening(f"http://{shown}:{bound.getsockname()[1]}{PATH}")
        await _serve_http(server, host, bound)


async def _serve_http(server: Any, host: str, bound: socket.socket) -> None:
    uvicorn = load("uvicorn")
    app = server.streamable_http_app(streamable_http_path=PATH, json_response=True, stateless_http=True, host=host)
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_SECONDS)
    http = uvicorn.Server(config)
    serving = asyncio.create_task(http.serve(sockets=[bound]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        http.should_exit = True
        await serving
        raise


def _bound(host: str, port: int) -> socket.socket:
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:
        if bound is not None:
            bound.close()
        raise UsageError(f"cannot listen on {host}, port {port}: {one_line(error)}. Choose another.") from error
    return bound


def _server(tools: Sequence[Tool]) -> Any:
    types = load("mcp.types")
    by_name = {tool.name: tool for tool in tools}
    slots = {tool.name: asyncio.Semaphore(tool.limit) for tool in tools if tool.limit is not None}
    listed = [
        types.Tool(name=tool.name, description=tool.description, input_schema=dict(tool.parameters)) for tool in tools
    ]

    async def list_tools(_context: Any, _params: Any) -> Any:
        return types.ListToolsResult(tools=listed)

    async def call(_context: Any, params: Any) -> Any:
        tool = by_name.get(params.name)
        if tool is None:
            known = ", ".join(by_name) or "none"
            return _result(types, f"unknown tool {params.name!r:.80}, the tools are {known}.", None, True)
        try:
            _check_arguments(tool, params.arguments or {})
        except ToolError as error:
            return _result(types, str(error), None, True)
        async with slots.get(tool.name) or contextlib.nullcontext():
            value, text, failure = await call_tool(tool, params.arguments or {}, tool.timeout or CALL_SECONDS)
        if failure is not None:
            return _result(types, failure, None, True)
        return _result(types, text, None if isinstance(value, str) else _structured(text), False)

    server = load("mcp.server.lowlevel").Server
    return server("intaglio", version=__version__, on_list_tools=list_tools, on_call_tool=call)


def _structured(text: str) -> dict[str, Any]:
    """A value as an object, which structured content has to be for clients before 2026."""
    value = json.loads(text)
    return value if isinstance(value, dict) else {"result": value}


def _result(types: Any, text: str, structured: dict[str, Any] | None, failed: bool) -> Any:
    content = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, structured_content=structured, is_error=failed)


def _check_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raise `ToolError` for arguments that do not follow the tool's schema."""
    validator = load("jsonschema").Draft202012Validator(dict(tool.parameters))
    error = load("jsonschema.exceptions").best_match(validator.iter_errors(dict(arguments)))
    if error is not None:
        where = "".join(f"{part}: " for part in error.absolute_path)
        raise ToolError(f"{tool.name}: {where}{' '.join(error.message.split())[:300]}")
