"""Text from a file or from standard input, as lines or as a whole."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from intaglio.errors import UsageError


def lines(file: Path | None) -> Iterator[str]:
    """Yield the lines of `file`, or of standard input as they arrive, blank ones too, without line feeds.

    Raises `UsageError` with the number of a line that is not UTF-8.
    """
    with contextlib.nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                name = file or "standard input"
                raise UsageError(
                    f"{name}: line {number} is not UTF-8 text ({error.reason}). Convert it to UTF-8."
                ) from error


def standard_input(missing: str) -> str:
    """Return all of standard input. Raises `UsageError` for text that is not UTF-8, and `missing` for a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(missing)
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input: not UTF-8 text (byte {error.start}). Convert it to UTF-8.") from error
