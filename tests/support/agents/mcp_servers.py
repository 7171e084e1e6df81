"""MCP servers for the tests: real processes of ours, and broken ones."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OURS = """
import asyncio, sys, time
from intaglio.runtime.agents.tools.mcp_server import serve_tools
from intaglio.runtime.agents.tools.tool import Tool, ToolError
from intaglio.runtime.agents.toolbox.arithmetic import CALCULATE


def tool(function, timeout=None, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return Tool(function.__name__, f"the tool {function.__name__}", schema, function, timeout=timeout)


def echo(value):
    print("printed, which must not disturb the protocol")
    return value


def fail():
    raise ToolError("fail: the disk is full.")


def crash():
    return {}["missing"]


def leave():
    raise SystemExit(3)


def die():
    import os
    os._exit(7)


def sleep(seconds):
    time.sleep(seconds)
    return "awake"


def sleep_short(seconds):
    return sleep(seconds)


async def later(seconds):
    await asyncio.sleep(seconds)
    return "awake"


number = {"type": "number"}
TOOLS = [
    CALCULATE, tool(echo, value={}), tool(fail), tool(crash), tool(leave), tool(die), tool(sleep, seconds=number),
    tool(sleep_short, timeout=0.2, seconds=number), tool(later, seconds=number),
]
if __name__ == "__main__":
    http = sys.argv[1:] == ["http"]
    asyncio.run(serve_tools(TOOLS, "http" if http else "stdio", port=0, listening=lambda url: print(url, flush=True)))
"""


def script(folder: Path, name: str, code: str) -> str:
    """Write a Python program and return its source for `open_tools`."""
    path = folder / name
    path.write_text(code)
    variables = f"PYTHONPATH={shlex.quote(os.environ.get('PYTHONPATH', ''))}"
    return f"mcp:{variables} {sys.executable} {shlex.quote(str(path))}"


@contextmanager
def http_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run our own server over HTTP and yield its address and process."""
    path = folder / "http_server.py"
    path.write_text(OURS)
    with subprocess.Popen([sys.executable, str(path), "http"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", line)
            yield line, process
        finally:
            process.kill()
