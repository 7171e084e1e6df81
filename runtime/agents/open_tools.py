"""Tools by name: those that come with Intaglio, a user's Python file, and MCP servers."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from intaglio.errors import UsageError, one_line
from intaglio.runtime.agents.plan.plan import ENDINGS
from intaglio.runtime.agents.toolbox.arithmetic import CALCULATE
from intaglio.runtime.agents.toolbox.page import file_tool, page_tool
from intaglio.runtime.agents.toolbox.text_search import TextIndex, search_tool
from intaglio.runtime.agents.tools.mcp_client import (
    CALL_SECONDS,
    COMMAND,
    NAME_CHARACTERS,
    NOT_IN_NAMES,
    Server,
    mcp_tools,
    read_command,
)
from intaglio.runtime.agents.tools.tool import Tool

SOURCES = f"calculate, search:FOLDER, pages, pages:FOLDER, FILE.py, http(s)://ADDRESS, or {COMMAND}COMMAND"
SCHEME = re.compile(r"https?://", re.IGNORECASE)


@asynccontextmanager
async def open_tools(sources: Sequence[str], call_seconds: float = CALL_SECONDS) -> AsyncIterator[dict[str, Tool]]:
    """Open the tools of `sources` by name, until the context is left; `call_seconds` limits a call of an MCP server.

    A source is one of:

    - `calculate`: arithmetic
    - `search:FOLDER`: passages of the text files in a folder
    - `pages`: `read_page`, for pages of the public web
    - `pages:FOLDER`: `read_file`, for the text and HTML files in a folder
    - `FILE.py`: the `Tool` objects of a Python file, which is run
    - `http://...` or `https://...`: the tools of an MCP server (streamable HTTP)
    - `mcp:COMMAND`: the tools of an MCP server that is started, see `mcp_tools`

    Tools of different sources with the same name get that of their source before it: `docs_search` and `notes_search`.
    So do tools named `join` or `finish`, which end a plan.
    Raises `UsageError` for a source that cannot be read, `ToolError` for a server that does not answer.
    """
    for source in sources:
        _check(source)
    async with AsyncExitStack() as stack:
        opened = []
        for source in dict.fromkeys(sources):
            if SCHEME.match(source) or source.startswith(COMMAND):
                opened.append(await stack.enter_async_context(mcp_tools(source, call_seconds=call_seconds)))
            else:
                opened.append(_local(source, stack))
        yield unique(opened)


def _check(source: str) -> None:
    """Raise `UsageError` for an unknown source, before any server is started."""
    name, _, folder = source.partition(":")
    if source.startswith(COMMAND):
        read_command(source)
    elif not (
        SCHEME.match(source)
        or source in ("calculate", "pages")
        or source.endswith(".py")
        or (name in ("search", "pages") and folder)
    ):
        raise UsageError(f"tools {source!r:.200}: expected {SOURCES}.")


def _local(source: str, stack: AsyncExitStack) -> Server:
    """The tools of a source other than a server; `stack` closes them."""
    if source.endswith(".py"):
        return Server(Path(source).stem, file_tools(Path(source)))
    name, _, folder = source.partition(":")
    label = Path(folder).resolve().name if folder else ""
    match name, folder:
        case "calculate", _:
            return Server(label, [CALCULATE])
        case "pages", "":
            return Server(label, [page_tool()])
        case "pages", _:
            return Server(label, [file_tool(folder)])
        case _:
            index = TextIndex(folder)
            stack.callback(index.close)
            return Server(label, [search_tool(index)])


def unique(servers: Sequence[Server]) -> dict[str, Tool]:
    """The tools of all servers by names of their own.

    That of the server goes before a name that several have, and before one that would end a plan.
    """
    counts = Counter(tool.name for server in servers for tool in server.tools)
    tools: dict[str, Tool] = {}
    for server in servers:
        for tool in server.tools:
            name = tool.name
            if (counts[name] > 1 or name in ENDINGS) and server.name:
                name = f"{NOT_IN_NAMES.sub('_', server.name)}_{name}"[-NAME_CHARACTERS:]
            plain, number = name, 1
            while name in tools or name in ENDINGS:
                number += 1
                name = f"{plain[: NAME_CHARACTERS - len(str(number)) - 1]}_{number}"
            tools[name] = replace(tool, name=name)
    return tools


def file_tools(path: Path) -> list[Tool]:
    """Run a Python file and return its module-level `Tool` objects, in the order of the file.

    The file may import others of its folder. Raises `UsageError` with file and line for errors in it.
    """
    if not path.is_file():
        raise UsageError(f"tools {path}: no such file. Expected a Python file.")
    try:
        with _importing_from(path.resolve().parent):
            module = _run(path)
    except (Exception, SystemExit) as error:
        raise _problem(error, path) from error
    tools = {id(each): each for each in vars(module).values() if isinstance(each, Tool)}
    if not tools:
        raise UsageError(
            f"tools {path}: no tools. Define one with the decorator intaglio.runtime.agents.tools.from_function.tool."
        )
    return list(tools.values())


def _run(path: Path) -> ModuleType:
    name = f"intaglio_tools_{NOT_IN_NAMES.sub('_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"tools {path}: expected a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look their module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file removed it
            sys.path.remove(str(folder))


def _problem(error: BaseException, path: Path) -> UsageError:
    line = _line(error, path)
    where = f"{path}:{line}" if line is not None else str(path)
    message = error.msg if isinstance(error, SyntaxError) else one_line(error, 300)
    return UsageError(f"tools {where}: {type(error).__name__}: {message}")


def _line(error: BaseException, path: Path) -> int | None:
    """The line of `path` where an error came up, or through which it came."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == path.resolve():
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    return lines[-1] if lines else None
