"""The tool `search`: passages of a folder of text files, ranked by BM25 in an index of SQLite (FTS5) in memory.

A passage is one or more paragraphs of a file: short ones, such as headings, go with the next, and long ones are cut.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from intaglio.errors import UsageError
from intaglio.runtime.agents.tools.tool import Tool, ToolError

SUFFIXES = (".txt", ".md")
MOST_FILE_BYTES = 4 << 20  # of one file; the rest is not searched
MOST_BYTES = 64 << 20  # of all files, about 15 s to index
HASH_BYTES = 64 << 20  # of words that are not yet merged into the index; 1.8 times as fast as SQLite's 1 MiB
LEAST_PASSAGE = 200  # characters, unless the file ends
MOST_PASSAGE = 1000  # characters
MOST_WORDS = 64  # of a query; more are ignored
MOST_PASSAGES = 20  # of a result

WORD = re.compile(r"\w+")
PARAGRAPHS = re.compile(r"\n\s*\n")
INSERT = "INSERT INTO passages (file, text) VALUES (?, ?)"
SELECT = "SELECT file, text FROM passages WHERE passages MATCH ? ORDER BY bm25(passages), rowid LIMIT ?"


class TextIndex:
    """The passages of the text files in `folder` and below. Threads may search it at the same time.

    Links that lead out of the folder, and files that are not text, are left out; bytes that are not UTF-8 (or UTF-16
    with a byte order mark) become U+FFFD. Raises `UsageError` for a folder that cannot be read, holds no such file, or
    holds more than `MOST_BYTES`.
    """

    def __init__(self, folder: str | Path, suffixes: Sequence[str] = SUFFIXES):
        self.folder = Path(folder)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.execute(
            "CREATE VIRTUAL TABLE passages USING fts5(file UNINDEXED, text, tokenize='porter unicode61')"
        )
        self._database.execute("INSERT INTO passages(passages, rank) VALUES ('hashsize', ?)", (HASH_BYTES,))
        try:
            self._fill(suffixes)
        except BaseException:
            self.close()
            raise

    def _fill(self, suffixes: Sequence[str]) -> None:
        total = files = 0
        for name, text in _texts(self.folder, suffixes):
            files, total = files + 1, total + len(text)
            if total > MOST_BYTES:
                raise UsageError(
                    f"search: {self.folder} holds more than {MOST_BYTES >> 20} MiB of text. Choose a subfolder."
                )
            self._database.executemany(INSERT, ((name, passage) for passage in passages(text)))
        if not files:
            raise UsageError(
                f"search: no {' or '.join(suffixes)} file in {self.folder}. Choose a folder of text files."
            )

    def find(self, query: str, limit: int) -> list[tuple[str, str]]:
        """The `limit` passages that fit `query` best, as (file, text). Any text is a query: it is split into words."""
        words = list(dict.fromkeys(WORD.findall(query.lower())))[:MOST_WORDS]
        if not words:
            return []
        match = " OR ".join(f'"{word}"' for word in words)  # quoted: no syntax of FTS5
        with self._lock, closing(self._database.execute(SELECT, (match, limit))) as rows:
            return rows.fetchall()

    def close(self) -> None:
        """Release the index, after a search that is running."""
        with self._lock:
            self._database.close()


def search_tool(index: TextIndex) -> Tool:
    """Return the tool `search` over the text files of `index`, which has to stay open."""

    def search(query: str, limit: int = 3) -> str:
        if not 1 <= limit <= MOST_PASSAGES:
            raise ToolError(f"search: limit {limit}, expected 1 to {MOST_PASSAGES}.")
        found = index.find(query, limit)
        if not found:
            return f"no passage has any word of {query!r:.200}"
        return "\n\n".join(f"[{file}] {text}" for file, text in found)

    return Tool(
        "search",
        f"Search the text files of the folder {index.folder.resolve().name} for words. Return the passages that fit "
        "best, each after the name of its file in brackets.",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "words to look for"},
                "limit": {"type": "integer", "minimum": 1, "maximum": MOST_PASSAGES, "default": 3},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        search,
    )


def passages(text: str) -> Iterator[str]:
    """Divide `text` into passages of paragraphs, `LEAST_PASSAGE` to `MOST_PASSAGE` characters long."""
    gathered = ""
    for paragraph in PARAGRAPHS.split(text):
        gathered = f"{gathered}\n{paragraph.strip()}".strip()
        if len(gathered) >= LEAST_PASSAGE:
            yield from _cut(gathered)
            gathered = ""
    if gathered:
        yield from _cut(gathered)


def _cut(passage: str) -> Sequence[str]:
    if len(passage) <= MOST_PASSAGE:
        return [passage]
    return textwrap.wrap(passage, MOST_PASSAGE, break_on_hyphens=False)


def _texts(folder: Path, suffixes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the text files in `folder` and below, by name."""
    try:
        root = folder.resolve(strict=True)
        os.listdir(root)  # os.walk ignores a folder that cannot be read  # noqa: PTH208
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"search: cannot read the folder {folder}: {reason}. Choose another.") from error
    for where, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(where, name)
            if path.suffix.lower() in suffixes and (text := _text(path, root)) is not None:
                yield os.fsencode(path.relative_to(root)).decode(errors="replace"), text


def _text(path: Path, root: Path) -> str | None:
    """The text of a file; None for a link out of `root`, and for what cannot be read or is not a text file."""
    try:
        target = path.resolve(strict=True)
        if not target.is_relative_to(root) or not stat.S_ISREG(target.stat().st_mode):
            return None
        with target.open("rb") as file:
            data = file.read(MOST_FILE_BYTES)
    except (OSError, RuntimeError):
        return None
    text = decode(data)
    return None if "\0" in text else text


def decode(data: bytes, charset: str | None = None) -> str:
    """Decode text of unknown origin: by its byte order mark, `charset`, or UTF-8. Never fails."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode(charset or "utf-8-sig", errors="replace")
    except (LookupError, ValueError):  # an unknown charset, or one that is not of text
        return data.decode("utf-8-sig", errors="replace")
