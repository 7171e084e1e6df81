"""The tools `read_page`, for pages of the web, and `read_file`, for files of one folder."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.runtime.agents.toolbox.html_text import PageText, html_text
from intaglio.runtime.agents.toolbox.public_web import MOST_BYTES, Fetched, fetch
from intaglio.runtime.agents.toolbox.text_search import decode
from intaglio.runtime.agents.tools.tool import Tool, ToolError

WINDOW = 3500  # characters of a result, so that it fits into what an agent shows to its model by default
HTML = frozenset({"text/html", "application/xhtml+xml"})
PLAIN = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml)|application/(javascript|x-ndjson)")
META_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset=["']?([\w-]{1,40})""", re.IGNORECASE)
MOST_NAMES = 10  # of files, in an error

OFFSET = {"type": "integer", "minimum": 0, "default": 0, "description": "the character to begin at"}


def page_tool(allow_hosts: Collection[str] = ()) -> Tool:
    """Return the tool `read_page`. `allow_hosts`: hosts that may have private addresses, such as a wiki's."""

    async def read_page(url: str, offset: int = 0, links: bool = False) -> str:
        fetched = await fetch(url, allow_hosts)
        # Of at most `MOST_BYTES`, and limited in time, but too slow for the event loop.
        page = await asyncio.to_thread(_page_text, fetched, links)
        return _window(page, offset, fetched.cut)

    return Tool(
        "read_page",
        f"Read a page of the web as text, {WINDOW} characters at a time. The end of a result names the next offset.",
        {
            "type": "object",
            "properties": {
                "url": {"type": "string", "description": "begins with http:// or https://"},
                "offset": OFFSET,
                "links": {"type": "boolean", "default": False, "description": "show the addresses of links"},
            },
            "required": ["url"],
            "additionalProperties": False,
        },
        read_page,
    )


def file_tool(folder: str | Path) -> Tool:
    """Return the tool `read_file` for the text and HTML files in `folder` and below. Raises `UsageError`."""
    root = Path(folder).resolve()
    if not root.is_dir():
        raise UsageError(f"pages: {folder} is not a folder. Choose a folder of text or HTML files.")

    def read_file(path: str, offset: int = 0) -> str:
        data = _file_bytes(root, path)
        text = _decode_html(data) if path.lower().endswith((".html", ".htm")) else decode(data)
        if "\0" in text:
            raise ToolError(f"read_file: {path!r:.200} is not text.")
        page = html_text(text) if path.lower().endswith((".html", ".htm")) else PageText("", text)
        return _window(page, offset, len(data) == MOST_BYTES)

    return Tool(
        "read_file",
        f"Read a file of the folder {root.name} as text, {WINDOW} characters at a time. "
        "The end of a result names the next offset.",
        {
            "type": "object",
            "properties": {"path": {"type": "string", "description": "relative to the folder"}, "offset": OFFSET},
            "required": ["path"],
            "additionalProperties": False,
        },
        read_file,
    )


def _page_text(fetched: Fetched, links: bool) -> PageText:
    if fetched.content_type in HTML or (not fetched.content_type and b"<html" in fetched.data[:1000].lower()):
        return html_text(_decode_html(fetched.data, fetched.charset), fetched.url if links else None)
    if not PLAIN.fullmatch(fetched.content_type or "text/plain"):
        raise ToolError(f"{fetched.url:.200}: {fetched.content_type:.80}, expected a page of text.")
    return PageText("", decode(fetched.data, fetched.charset))


def _decode_html(data: bytes, charset: str | None = None) -> str:
    declared = META_CHARSET.search(data[:4096])
    return decode(data, charset or (declared[1].decode() if declared else None))


def _window(page: PageText, offset: int, cut: bool) -> str:
    """The part of a page that begins at `offset`, its title before it, and what is left after it."""
    length = len(page.text)
    if not 0 <= offset <= max(0, length - 1):
        raise ToolError(f"offset {offset}: expected 0 to {max(0, length - 1)}, the page has {length} characters.")
    end = min(length, offset + WINDOW)
    parts = [page.title] if page.title else []
    parts.append(page.text[offset:end] or "(no text)")
    if end < length:
        parts.append(f"[characters {offset} to {end} of {length}; continue with offset {end}]")
    elif cut:
        parts.append(f"[the page is longer than {MOST_BYTES >> 20} MiB; the rest was not read]")
    return "\n\n".join(parts)


def _file_bytes(root: Path, path: str) -> bytes:
    """The beginning of a file in `root`. Raises `ToolError` for anything else, links out of it included."""
    try:
        target = (root / path).resolve(strict=True)
        if not target.is_relative_to(root):
            raise ToolError(f"read_file: {path!r:.200} is outside of the folder {root.name}.")
        if not stat.S_ISREG(target.stat().st_mode):
            raise ToolError(f"read_file: {path!r:.200} is not a file. {_some_names(target)}")
        with target.open("rb") as file:
            return file.read(MOST_BYTES)
    except FileNotFoundError:
        raise ToolError(f"read_file: no file {path!r:.200}. {_some_names(root)}") from None
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ToolError(f"read_file: {path!r:.200}: {reason}") from None


def _some_names(folder: Path) -> str:
    if not folder.is_dir():
        return "Expected a file."
    names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir() if not each.name.startswith("."))
    shown = ", ".join(os.fsencode(name).decode(errors="replace") for name in names[:MOST_NAMES])
    return f"The folder {folder.name} has {shown or 'no files'}{', ...' if len(names) > MOST_NAMES else '.'}"
