"""`intaglio serve-tools`."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import click

from intaglio.cli.printing.results import notice
from intaglio.cli.running.command import verb

EPILOG = """\b
Examples:
  intaglio serve-tools calculate search:notes
  intaglio serve-tools tools.py --port 8000
  intaglio agent "What is 6 * 7?" --tools "mcp:intaglio serve-tools calculate" --model qwen3
"""


@verb("serve-tools", epilog=EPILOG)
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--port", type=click.IntRange(0, 65535), help="Serve over HTTP; 0: any free port.  [default: stdio]")
@click.option("--host", default="127.0.0.1", help="Address to listen on, with --port.")
def serve_tools_command(sources: tuple[str, ...], port: int | None, host: str) -> None:
    """Serve the tools of each SOURCE as an MCP server, on standard input and output, or over HTTP with --port.

    A SOURCE is one of `intaglio agent --tools`. Over HTTP, the address goes to standard error, and whoever reaches it
    may call the tools. Ends with its input, or with SIGTERM or Ctrl-C.
    """
    from intaglio.cli.running.event_loop import run

    with suppress(KeyboardInterrupt):  # as servers end
        run(_serve(sources, port, host))


async def _serve(sources: tuple[str, ...], port: int | None, host: str) -> None:
    from intaglio.runtime.agents.open_tools import open_tools
    from intaglio.runtime.agents.tools.mcp_server import serve_tools

    try:
        async with open_tools(sources) as tools:
            if port is not None:
                shown = f"serving {', '.join(tools)} at"
                await serve_tools(list(tools.values()), "http", host, port, lambda at: notice(f"{shown} {at}"))
            else:
                await asyncio.shield(asyncio.create_task(serve_tools(list(tools.values()))))
    except asyncio.CancelledError:
        if port is None:
            os._exit(0)  # the thread that reads standard input cannot be stopped, and the end of the loop waits for it
        raise
