"""Text from a file or from standard input, as lines or as a whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from intaglio.errors import UsageError
from intaglio.files.input_files import MAX_BYTES, NotTextError, decode, open_file, stream_lines


def lines(file: Path | None, option: str = "--input") -> Iterator[str]:
    """The lines of `file`, or of standard input as they arrive, blank ones too, without line feeds.

    Raises `UsageError` for a file that `option` named and that cannot be read, and with the number of a line that is
    not UTF-8.
    """
    if file is None:
        return stream_lines(sys.stdin.buffer, "standard input")
    try:
        stream = open_file(file)
    except OSError as error:
        fix = "Give a UTF-8 file with one text per line, or - for stdin."
        raise UsageError(f"{option} {file}: {error.strerror}. {fix}") from error
    # Closed with the command, not with the generator, which an error's traceback may keep.
    return stream_lines(click.get_current_context().with_resource(stream), f"{option} {file}")


def standard_input(missing: str) -> str:
    """Return all of standard input. Raises `UsageError` for text that is not UTF-8, and `missing` for a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(missing)
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"standard input: more than {MAX_BYTES} bytes. Shorten it.")
    try:
        return decode(data)
    except NotTextError as error:
        raise UsageError(f"standard input: {error}") from error
